// SPDX-License-Identifier: Apache-2.0
// The conversation: what the server is asked, how its answers come, and what went wrong.
const talk = [];     // {role, text, line}, of the model with `answer`, the oldest first
let running = null;  // what ends the answer under way

function status_line(text, is_broken) {
  $('server').textContent = text;
  $('server').className = is_broken ? 'broken' : 'soft';
}

// ---- The server --------------------------------------------------------------------------------
// The key goes into this header and nowhere else.
function headers() {
  const all = {'Content-Type': 'application/json'}, key = $('key').value.trim();
  if (key) all.Authorization = 'Bearer ' + key;
  return all;
}

const options = more => Object.assign(
  {headers: headers(), credentials: 'omit', cache: 'no-store', redirect: 'error', referrerPolicy: 'no-referrer'}, more);

// An error in the server's own words.
async function failure(reply) {
  const body = await reply.text();
  let told = body;
  try {
    const error = JSON.parse(body).error;
    told = error.message || error;
  } catch {}
  const problem = new Error(reply.status + ': ' + told);
  problem.status = reply.status;
  return problem;
}

async function read(path) {
  const reply = await fetch(path, options({}));
  if (!reply.ok) throw await failure(reply);
  return reply.json();
}

async function meet() {
  try {
    const props = await read('props'), models = (await read('v1/models')).data;
    $('model').replaceChildren(...models.map(model => make('option', model.id)));
    const can_chat = props.chat_template !== '';
    $('mode').options[0].disabled = !can_chat;
    if (!can_chat) $('mode').value = 'text';
    set_mode();
    status_line(models[0].id + ', ' + models[0].max_model_len + ' positions' +
      (can_chat ? '' : '; it has no chat template, so it continues a text'), false);
  } catch (error) {
    status_line(error.message, true);
    if (error.status === 503) setTimeout(meet, 1000);
    if (error.status === 401) $('settings').open = true;
  }
}

function set_mode() {
  const is_chat = $('mode').value === 'chat';
  $('say-label').textContent = is_chat ? 'Message' : 'Text to continue (empty: go on)';
  $('system').disabled = !is_chat;
  set_buttons();
}

// ---- What is asked -----------------------------------------------------------------------------
function number_of(id, name) {
  const field = $(id);
  if (field.value === '' && !field.validity.badInput) return undefined;
  if (!field.checkValidity()) throw new Error(name + ': ' + field.validationMessage);
  return Number(field.value);
}

function constraint() {
  const kind = $('kind').value, text = $('form').value;
  if (kind === '') return undefined;
  if (kind === 'choice') return {choice: text.split('\n').filter(line => line !== '')};
  try {
    return {json: JSON.parse(text)};
  } catch (error) {
    throw new Error('The JSON schema cannot be read: ' + error.message);
  }
}

// What has failed is not part of the conversation.
function body_of(with_account) {
  const body = {
    model: $('model').value || undefined, stream: true, stream_options: {include_usage: true},
    account: with_account || undefined, temperature: number_of('temperature', 'Temperature'),
    max_tokens: number_of('limit', 'Most tokens'), seed: number_of('seed', 'Seed'), structured_outputs: constraint(),
  };
  const said = talk.filter((turn, i) => !turn.is_failed && !(talk[i + 1] && talk[i + 1].is_failed));
  if ($('mode').value === 'text') return Object.assign(body, {prompt: said.map(turn => turn.text).join('')});
  body.messages = said.map(turn => ({role: turn.role, content: turn.text}));
  if ($('system').value !== '') body.messages.unshift({role: 'system', content: $('system').value});
  return body;
}

// Yields the objects of a stream of server-sent events.
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') return;
      yield JSON.parse(line.slice(6));
    }
  }
  throw new Error('The connection ended before the answer did.');
}

// ---- How an answer comes -----------------------------------------------------------------------
function add_turn(role, text, content) {
  const line = make('li', undefined, role);
  line.append(make('b', role === 'user' ? 'You' : 'Model'), content);
  $('talk').append(line);
  const turn = {role, text, line};
  talk.push(turn);
  return turn;
}

// Whoever is at the page's end stays there while an answer grows.
let is_at_end = true, has_frame = false;
window.addEventListener('scroll', () => {
  is_at_end = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 40;
});

function follow() {
  if (!is_at_end || has_frame) return;
  has_frame = true;
  requestAnimationFrame(() => {
    has_frame = false;
    if (is_at_end) window.scrollTo(0, document.documentElement.scrollHeight);
  });
}

function take(turn, told) {
  const {answer} = turn;
  if (told.error) throw new Error(told.error.message || String(told.error));
  if (told.usage) answer.usage = told.usage;
  if (told.timings) answer.timings = told.timings;
  for (const choice of told.choices || []) {
    const delta = choice.delta || {}, text = delta.content || choice.text || '';
    turn.text += text;
    answer.said += (delta.reasoning_content || '') + text;
    if (answer.first === undefined && (answer.said !== '' || choice.account)) answer.first = performance.now();
    for (const token of choice.account || []) add_token(answer, token);
    for (const position of choice.drafted_positions || []) answer.drafted.add(position);
    if (choice.finish_reason) answer.reason = choice.finish_reason;
  }
  if (answer.drafted.size) mark_drafted(answer);
  show_pending(answer);
  follow();
}

const ends = {stop: 'The model ended its answer.', length: 'The answer was cut at its limit.', stopped: 'You stopped the answer.'};

function notes(turn) {
  const {answer} = turn, list = [];
  if (answer.reason) list.push(ends[answer.reason] || 'The answer ended: ' + answer.reason + '.');
  if (answer.usage) {
    list.push(answer.usage.prompt_tokens_details.cached_tokens + ' of ' + answer.usage.prompt_tokens +
      ' prompt tokens came from the cache.');
  }
  const made = answer.usage ? answer.usage.completion_tokens : answer.tokens.length;
  const seconds = (answer.last - answer.first) / 1000;
  const rate = answer.timings ? answer.timings.predicted_per_second : seconds > 0 ? (made - 1) / seconds : 0;
  if (answer.first !== undefined) {
    list.push('First token after ' + ((answer.first - answer.begin) / 1000).toFixed(3) + ' s' +
      (made > 1 && rate > 0 ? ', then ' + rate.toFixed(1) + ' tokens/s' : '') + '.');
  }
  const drafted = answer.tokens.filter(token => token.drafted).length;
  if (drafted) list.push(drafted + ' of ' + answer.tokens.length + ' tokens were guessed ahead.');
  return list.join(' ');
}

async function stream(turn, body) {
  const {answer} = turn;
  answer.begin = performance.now();
  const path = body.messages ? 'v1/chat/completions' : 'v1/completions';
  const reply = await fetch(path, options({method: 'POST', body: JSON.stringify(body), signal: running.signal}));
  if (!reply.ok) throw await failure(reply);
  for await (const told of events(reply)) take(turn, told);
}

async function ask() {
  let body;
  try {
    body = body_of($('accounts').checked);
  } catch (error) {
    return fail(error.message);
  }
  const answer = new_answer(), turn = add_turn('assistant', '', answer.list);
  turn.answer = answer;
  running = new AbortController();
  set_buttons();
  follow();
  try {
    try {
      await stream(turn, body);
    } catch (error) {
      if (error.status !== 501 || !body.account) throw error;
      $('accounts').checked = false;  // a server that keeps no records answers without them
      delete body.account;
      await stream(turn, body);
    }
  } catch (error) {
    if (error.name === 'AbortError') answer.reason = 'stopped';
    else fail(error.message, turn);
  }
  answer.last = performance.now();
  running = null;
  turn.is_failed = answer.said === '' && answer.reason === undefined;
  if (turn.is_failed && !answer.tokens.length) answer.list.remove();
  turn.line.append(make('p', notes(turn), 'note'));
  follow();
  $('status').textContent = 'Answer: ' + turn.text;
  set_buttons();
}

function fail(message, turn) {
  const line = make('p', message, 'broken');
  line.setAttribute('role', 'alert');
  if (turn) turn.line.append(line);
  else $('ask').append(line);
}

// ---- What may be done --------------------------------------------------------------------------
function set_buttons() {
  const is_running = running !== null;
  $('send').disabled = is_running;
  $('stop').disabled = !is_running;
  $('retry').disabled = is_running || !talk.some(turn => turn.role === 'assistant');
  $('clear').disabled = is_running || talk.length === 0;
}

function forget(from) {
  for (const turn of talk.splice(from)) {
    if (selected && selected.answer === turn.answer) deselect();
    turn.line.remove();
  }
}

function drop_problems() {
  for (const line of document.querySelectorAll('#ask > .broken')) line.remove();
}

$('ask').addEventListener('submit', event => {
  event.preventDefault();
  const text = $('say').value;
  if (running || (text === '' && ($('mode').value === 'chat' || !talk.length))) return;
  drop_problems();
  if (text !== '') add_turn('user', text, make('div', text, 'text'));
  $('say').value = '';
  ask();
});
// Enter sends in a conversation; with the shift key it ends a line, as it does in a text.
$('say').addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.isComposing || event.shiftKey) return;
  if ($('mode').value === 'text' && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  $('ask').requestSubmit();
});
$('stop').addEventListener('click', () => running && running.abort());
$('retry').addEventListener('click', () => {
  drop_problems();
  forget(talk.findLastIndex(turn => turn.role === 'assistant'));
  ask();
});
$('clear').addEventListener('click', () => {
  drop_problems();
  forget(0);
  set_buttons();
  $('say').focus();
});
$('mode').addEventListener('change', set_mode);
$('key').addEventListener('change', meet);
legend();
set_buttons();
meet();
