// SPDX-License-Identifier: Apache-2.0
#include "http/transport.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <filesystem>
#include <utility>

#include "vitrine/core.h"

namespace vitrine::http {

namespace {

using asio::ip::tcp;

size_t untaken_of(int socket) {
  int count = 0;
  return ::ioctl(socket, SIOCOUTQ, &count) == 0 ? static_cast<size_t>(count) : 0;
}

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {}

  asio::awaitable<void> open(ErrorCode& /*error*/) override { co_return; }
  asio::awaitable<size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await socket_.async_read_some(asio::buffer(buffer),
                                               asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<size_t> write_some(asio::const_buffer buffer, ErrorCode& error) override {
    co_return co_await socket_.async_write_some(asio::buffer(buffer),
                                                asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<void> finish() override {
    ErrorCode ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    co_return;
  }
  size_t untaken() override { return untaken_of(socket_.native_handle()); }
  void close() override {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
};

class TlsTransport : public Transport {
 public:
  TlsTransport(tcp::socket socket, asio::ssl::context& tls) : stream_(std::move(socket), tls) {}

  asio::awaitable<void> open(ErrorCode& error) override {
    co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await stream_.async_read_some(asio::buffer(buffer),
                                               asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<size_t> write_some(asio::const_buffer buffer, ErrorCode& error) override {
    co_return co_await stream_.async_write_some(asio::buffer(buffer),
                                                asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<void> finish() override {
    ErrorCode ignored;
    co_await stream_.async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
  }
  size_t untaken() override { return untaken_of(stream_.lowest_layer().native_handle()); }
  void close() override {
    ErrorCode ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

void check_file(const std::string& path, const char* option, const char* expected) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return;
  throw Error(ErrorKind::kIo, path + ": cannot be read (http option '" + std::string(option) +
                                  "'); expected " + expected);
}

}  // namespace

std::unique_ptr<Transport> make_transport(tcp::socket socket, asio::ssl::context* tls) {
  if (tls != nullptr) return std::make_unique<TlsTransport>(std::move(socket), *tls);
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<asio::ssl::context> make_tls(const std::string& certificate,
                                             const std::string& key) {
  if (certificate.empty() && key.empty()) return nullptr;
  if (certificate.empty() || key.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "http options 'tls_cert' and 'tls_key' go together; expected both or neither");
  }
  check_file(certificate, "tls_cert", "a certificate chain in PEM");
  check_file(key, "tls_key", "a key in PEM");
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  ErrorCode error;
  tls->use_certificate_chain_file(certificate, error);
  if (error) {
    throw Error(ErrorKind::kBadFile,
                certificate + ": " + error.message() + "; expected a certificate chain in PEM");
  }
  tls->use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) {
    throw Error(ErrorKind::kBadFile,
                key + ": " + error.message() + "; expected the certificate's key in PEM");
  }
  return tls;
}

}  // namespace vitrine::http
