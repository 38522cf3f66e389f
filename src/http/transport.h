// SPDX-License-Identifier: Apache-2.0
// The bytes of a connection, with TLS or without.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>

namespace vitrine::http {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

/// For the I/O thread; one read and one write at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  /// What comes before the first byte (TLS).
  virtual asio::awaitable<void> open(ErrorCode& error) = 0;
  virtual asio::awaitable<size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) = 0;
  virtual asio::awaitable<size_t> write_some(asio::const_buffer buffer, ErrorCode& error) = 0;
  /// Tells the other side that nothing comes any more.
  virtual asio::awaitable<void> finish() = 0;
  /// Returns how many bytes of what was written the other side has not taken in.
  virtual size_t untaken() = 0;
  /// Closes at once; what is under way ends with an error.
  virtual void close() = 0;
};

/// `tls`: null: none; it must stay.
std::unique_ptr<Transport> make_transport(asio::ip::tcp::socket socket, asio::ssl::context* tls);

/// What such servers offer: TLS 1.2 and later. Throws kIo and kBadFile.
std::unique_ptr<asio::ssl::context> make_tls(const std::string& certificate,
                                             const std::string& key);

}  // namespace vitrine::http
