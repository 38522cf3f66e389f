// SPDX-License-Identifier: Apache-2.0
// Tokens of answers: how they are coloured and chosen, and what is said of each. Whatever comes
// from the server becomes a text node.
const $ = id => document.getElementById(id);
const make = (tag, text, cls) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (cls) node.className = cls;
  return node;
};
const percent = lp => (100 * Math.exp(lp)).toFixed(2) + ' %';
// Characters that turn the direction of what follows them, and those that steer something.
const turns = /[\u202a-\u202e\u2066-\u2069]/g;
const controls = /[\u0000-\u001f\u007f-\u009f]/g;
const spelt = char => '[U+' + char.codePointAt(0).toString(16).toUpperCase().padStart(4, '0') + ']';
const shown = text => text === '' ? '␀' : text.replace(/\n/g, '⏎').replace(/ /g, '␣')
  .replace(turns, spelt).replace(controls, spelt);
const hex = bytes => bytes.map(byte => byte.toString(16).toUpperCase().padStart(2, '0')).join(' ');
const name_of = token => token.bytes ? 'bytes ' + hex(token.bytes) : shown(token.token);
const surprise_colour = lp => 'rgba(var(--surprise), ' + Math.min(.75, -lp / 9).toFixed(3) + ')';
// Neighbouring numbers get hues that are far apart.
const expert_colour = expert => 'hsl(' + Math.round(expert * 137.508) % 360 + ' 70% 50% / .38)';

let selected = null;  // the answer and the index of its token

function legend() {
  $('legend').append(make('span', 'Surprise: '));
  for (const [lp, words] of [[0, 'certain'], [-.693, '1 in 2'], [-2.303, '1 in 10'], [-4.605, '1 in 100'], [-6.908, '1 in 1,000']]) {
    const swatch = make('span', words, 'swatch');
    swatch.style.backgroundColor = surprise_colour(lp);
    $('legend').append(swatch);
  }
  $('legend').append(make('span', 'guessed ahead', 'drafted'));
}

// ---- An answer's tokens ------------------------------------------------------------------------
let num_answers = 0;

function new_answer() {
  const answer = {number: num_answers++, said: '', covered: '', tokens: [], spans: [], drafted: new Set(), decoder: null};
  answer.list = make('div', undefined, 'text');
  answer.list.setAttribute('role', 'listbox');
  answer.list.setAttribute('aria-orientation', 'horizontal');
  answer.list.setAttribute('aria-label', 'Tokens of answer ' + (answer.number + 1));
  answer.list.setAttribute('aria-describedby', 'help');
  answer.list.tabIndex = 0;
  answer.pending = make('span', '', 'pending');
  answer.pending.setAttribute('role', 'presentation');
  answer.list.append(answer.pending);
  answer.list.addEventListener('click', event => {
    const span = event.target.closest('[role="option"]');
    if (!span) return;
    if (span.getAttribute('aria-selected') === 'true') deselect();
    else choose(answer, answer.spans.indexOf(span));
  });
  answer.list.addEventListener('keydown', event => {
    const at = selected && selected.answer === answer ? selected.index : -1;
    const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
                Home: 0, End: answer.spans.length - 1}[event.key];
    if (event.key === 'Escape') deselect();
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(answer, to);
  });
  return answer;
}

// The text of a token; of one that is a part of a character, what the bytes so far complete.
function text_of(answer, token) {
  if (!token.bytes) {
    answer.decoder = null;
    return token.token;
  }
  answer.decoder = answer.decoder || new TextDecoder();
  return answer.decoder.decode(new Uint8Array(token.bytes), {stream: true});
}

// What a grammar takes back and spells anew is told a second time.
function cut_from(answer, position) {
  const at = answer.tokens.findIndex(token => token.position >= position);
  if (at < 0) return;
  if (selected && selected.answer === answer && selected.index >= at) deselect();
  answer.spans.splice(at).forEach(span => span.remove());
  answer.tokens.splice(at);
  answer.covered = answer.tokens.map(token => token.special ? '' : token.text).join('');
}

function add_token(answer, token) {
  cut_from(answer, token.position);
  token.text = text_of(answer, token);
  const span = make('span', token.text, token.special ? 'special' : '');
  if (token.bytes && token.text === '') span.classList.add('part');
  if (token.text.search(turns) >= 0) span.classList.add('turned');
  span.id = 'answer-' + answer.number + '-' + answer.tokens.length;
  span.setAttribute('role', 'option');
  span.setAttribute('aria-selected', 'false');
  if (token.text.trim() === '') {
    span.setAttribute('aria-label', token.bytes ? 'a part of a character' : token.text.includes('\n') ? 'line end' : 'white space');
  }
  span.style.backgroundColor = surprise_colour(token.logprob);
  answer.tokens.push(token);
  answer.spans.push(span);
  if (!token.special) answer.covered += token.text;
  answer.pending.before(span);
}

// Guesses that were right are told by their positions, which may come behind the tokens.
function mark_drafted(answer) {
  answer.tokens.forEach((token, i) => {
    if (token.drafted || !answer.drafted.has(token.position)) return;
    token.drafted = true;
    answer.spans[i].classList.add('drafted');
  });
}

// Text that is known before its tokens' account, or that has none, stands behind the rest.
function show_pending(answer) {
  const goes_on = answer.said.startsWith(answer.covered);
  answer.pending.textContent = goes_on ? answer.said.slice(answer.covered.length) : '';
}

// ---- The selected token ------------------------------------------------------------------------
function deselect() {
  if (!selected) return;
  const span = selected.answer.spans[selected.index];
  if (span) span.setAttribute('aria-selected', 'false');
  selected.answer.list.removeAttribute('aria-activedescendant');
  selected = null;
  $('account').replaceChildren(make('p', 'None is selected.', 'soft'));
}

function choose(answer, index) {
  if (index < 0 || index >= answer.spans.length) return;
  deselect();
  selected = {answer, index};
  const span = answer.spans[index], token = answer.tokens[index];
  span.setAttribute('aria-selected', 'true');
  answer.list.setAttribute('aria-activedescendant', span.id);
  span.scrollIntoView({block: 'nearest'});
  show_account(token);
  $('status').textContent = 'Position ' + token.position + ', ' + name_of(token) + ', probability ' + percent(token.logprob);
}

function pairs(list) {
  const all = make('dl');
  for (const [name, value] of list) all.append(make('dt', name), make('dd', value));
  return all;
}

function show_account(token) {
  const box = $('account');
  box.replaceChildren(make('p', name_of(token), 'name'));
  box.append(pairs([
    ['Position', token.position + ', token ' + token.id],
    ['Probability', percent(token.logprob) + ' (surprise ' + (-token.logprob).toFixed(3) + ' nats)'],
    ['Entropy', token.entropy.toFixed(3) + ' nats'],
  ]));
  if (token.special) box.append(make('p', 'A special token: a tag of the template, and no part of what is said.', 'soft'));
  if (token.drafted) box.append(make('p', 'A drafter had guessed it, and the model chose the same.', 'soft'));
  if (token.constraint) box.append(constraint_line(token));
  box.append(make('h3', 'What could have come'), alternatives_table(token));
  box.append(make('h3', 'The leading expert of each layer'));
  box.append(token.experts.length ? strip(token.experts) :
    make('p', 'The model has no layers with experts.', 'soft'));
  $('token').scrollTop = 0;
}

function constraint_line(token) {
  const held = token.constraint, first = token.alternatives[0];
  const line = make('p', 'The grammar allowed ' + held.allowed + (held.allowed === 1 ? ' token' : ' tokens') + ' and removed ' +
    (100 * held.removed).toFixed(2) + ' % of the probability.');
  line.id = 'removed';
  if (held.first_ruled_out && first) {
    line.append(' It ruled out the model’s own first choice, ', make('bdi', '“' + name_of(first) + '”'), '.');
  }
  return line;
}

function alternatives_table(token) {
  const table = make('table'), head = make('thead'), titles = make('tr'), body = make('tbody');
  for (const title of ['Token', 'Probability', '']) {
    const cell = make(title ? 'th' : 'td', title);
    if (title) cell.scope = 'col';
    titles.append(cell);
  }
  head.append(titles);
  const list = token.alternatives.some(other => other.id === token.id) ? token.alternatives : token.alternatives.concat([token]);
  for (const other of list) {
    const line = make('tr', undefined, other.id === token.id ? 'chosen' : ''), name = make('td'), bar = make('td', undefined, 'bar');
    name.append(make('bdi', name_of(other)));
    if (other.id === token.id) name.append(make('span', ' (chosen)', 'soft'));
    const fill = make('div');
    fill.style.width = (100 * Math.exp(other.logprob)).toFixed(1) + '%';
    bar.append(fill);
    line.append(name, make('td', percent(other.logprob), 'number'), bar);
    body.append(line);
  }
  table.id = 'alternatives';
  table.append(head, body);
  return table;
}

// A cell a layer: the expert's number on its hue, and its weight as a bar.
function strip(experts) {
  const list = make('ul');
  list.id = 'strip';
  for (const [layer, expert, weight] of experts) {
    const words = 'layer ' + layer + ': expert ' + expert + ', weight ' + weight.toFixed(3);
    const cell = make('li'), number = make('span', String(expert)), bar = make('i');
    number.setAttribute('aria-hidden', 'true');
    cell.title = words;
    cell.style.backgroundColor = expert_colour(expert);
    bar.style.width = (100 * Math.max(0, Math.min(1, weight))).toFixed(0) + '%';
    cell.append(number, make('span', words, 'spoken'), bar);
    list.append(cell);
  }
  return list;
}
