// SPDX-License-Identifier: Apache-2.0
// The run's page: what it says first, the text and its colours, and which token is selected.
const run = JSON.parse(document.getElementById('data').textContent);
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
const told = token => token.part ? 'the rest of the character before it' : '“' + shown(token.text) + '”';

// A term of the glossary that leads there, and says what it means where it stands.
function word(name, text) {
  const link = make('a', text || name, 'word');
  link.href = '#word-' + name;
  link.title = $('word-' + name).nextElementSibling.textContent;
  return link;
}

// A paragraph of texts and terms.
function say(parts, cls) {
  const line = make('p', undefined, cls);
  line.append(...parts);
  return line;
}

// ---- What the page says first -----------------------------------------------------------------
function facts() {
  $('verdict').textContent = run.verdict.text;
  $('verdict').className = run.verdict.kind;
  for (const fact of run.facts) {
    const value = make('dd'), pair = make('div');
    value.append(make('bdi', fact.text));
    if (fact.details.length) {
      const more = make('details'), head = make('summary', 'Details'), table = make('table');
      head.append(make('span', ' of “' + fact.label + '”', 'spoken'));
      for (const [name, text] of fact.details) {
        const cell = make('td'), title = make('th', name);
        title.scope = 'row';
        cell.append(make('bdi', text));
        row(table, [title, cell]);
      }
      more.append(head, table);
      value.append(more);
    }
    pair.append(make('dt', fact.label), value);
    $('facts').append(pair);
  }
  $('failures').textContent = run.failures;
  $('failed').hidden = run.failures === '';
}

// ---- The text ---------------------------------------------------------------------------------
const list = $('text');
const spans = [];
let selected = -1;
const whose = {
  Prompt: ['prompt', 'given to the model'],
  Answer: ['answer', 'chosen by the model, token by token'],
  'Not told': ['unknown', 'whether it was given or chosen was left out or is encrypted'],
};

function build() {
  for (const segment of run.segments) {
    const [cls, words] = whose[segment.kind];
    const group = make('div', undefined, cls);
    group.setAttribute('role', 'group');
    group.setAttribute('aria-label', segment.label + (segment.note ? ', ' + segment.note : ''));
    const title = make('b', segment.label + ': ' + words + (segment.note ? ' (' + segment.note + ')' : ''));
    title.setAttribute('aria-hidden', 'true');
    group.append(title);
    for (let i = segment.first; i < segment.first + segment.count; ++i) {
      const token = run.tokens[i];
      const span = make('span', token.text === '' && !token.part ? '␀' : token.text, token.special ? 'special' : '');
      if (token.hidden) span.classList.add('unknown');
      if (token.text.search(turns) >= 0) span.classList.add('turned');
      span.id = 't' + i;
      span.setAttribute('role', 'option');
      span.setAttribute('aria-selected', 'false');
      if (token.special) span.setAttribute('aria-label', 'tag ' + token.text);
      else if (token.part) span.setAttribute('aria-label', told(token));
      else if (token.text.trim() === '') span.setAttribute('aria-label', token.text.includes('\n') ? 'line end' : 'white space');
      spans[i] = span;
      group.append(span);
    }
    list.append(group);
  }
  if (!spans.length) list.replaceWith(make('p', 'No token can be read from this record.', 'broken'));
}

function select(index, speak) {
  if (index < 0 || index >= spans.length) return;
  if (selected >= 0) spans[selected].setAttribute('aria-selected', 'false');
  selected = index;
  spans[index].setAttribute('aria-selected', 'true');
  list.setAttribute('aria-activedescendant', spans[index].id);
  const token = run.tokens[index];
  show(token);
  if (!speak) return;  // an opened page stays at its first lines
  spans[index].scrollIntoView({block: 'nearest'});
  $('status').textContent = 'Position ' + token.position + ', ' + (token.made ? 'answer: ' : token.hidden ? '' : 'prompt: ') +
    told(token) + (token.lp === null ? '' : ', probability ' + percent(token.lp));
}

list.addEventListener('click', event => {
  const span = event.target.closest('[role="option"]');
  if (span) select(spans.indexOf(span), true);
});
list.addEventListener('keydown', event => {
  const to = {ArrowRight: selected + 1, ArrowDown: selected + 1, ArrowLeft: selected - 1, ArrowUp: selected - 1,
              Home: 0, End: spans.length - 1}[event.key];
  if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  select(to, true);
});

// ---- Colours ----------------------------------------------------------------------------------
function leader(token, layer) {
  if (token.sums) {
    let best = null;
    for (const term of token.sums.flatMap(sum => sum.terms)) {
      if (term[0] === 'expert' && term[1] === layer && (!best || term[3] > best[1])) best = [term[2], term[3]];
    }
    return best && best[0];
  }
  const routes = token.routes && token.routes.find(one => one[0] === layer);
  return routes && routes[1].length && routes[1][0][0] >= 0 ? routes[1][0][0] : null;
}

const surprise_colour = lp => 'rgba(var(--surprise), ' + Math.min(.75, -lp / 9).toFixed(3) + ')';
const hue_colour = hue => 'hsl(' + Math.round(hue) % 360 + ' 70% 50% / .38)';
const expert_colour = (layer, expert) =>
  hue_colour(360 * expert / run.experts.find(one => one[0] === layer)[1].length);
const specialist_colour = index => hue_colour(360 * index / run.federation.specialists.length + 205);

function colour_of(token, by) {
  if (!token.made || token.special) return '';
  if (by === 'surprise') return token.lp === null ? '' : surprise_colour(token.lp);
  if (by === 'specialist') return token.shares ? specialist_colour(token.leader) : '';
  const expert = leader(token, Number(by));
  return expert === null || expert === undefined ? '' : expert_colour(Number(by), expert);
}

function legend(by) {
  const swatch = (text, colour) => {
    const one = make('span', text, 'swatch');
    one.style.background = colour;
    return one;
  };
  const box = $('legend');
  if (by === 'surprise') {
    const colour = [1, .5, .1, .01, .001].map(p => swatch(100 * p + ' %' + (p === .001 ? ' or less' : ''), surprise_colour(Math.log(p))));
    const lead = make('span', 'By ');
    lead.append(word('surprise'), ', the probability that the model gave a token:');
    return box.replaceChildren(lead, ...colour);
  }
  if (by === 'specialist') {
    const lead = make('span', 'By the ');
    lead.append(word('specialist'), ' that led:');
    return box.replaceChildren(lead, ...run.federation.specialists.map(([name], i) => swatch(name, specialist_colour(i))));
  }
  const layer = Number(by), counts = new Map();
  for (const token of run.tokens) {
    const expert = token.made ? leader(token, layer) : null;
    if (expert !== null && expert !== undefined) counts.set(expert, 1 + (counts.get(expert) || 0));
  }
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 24).map(one => one[0]).sort((a, b) => a - b);
  const lead = make('span', 'By the ');
  lead.append(word('expert'), ' that led in layer ' + layer + ':');
  box.replaceChildren(lead, ...most.map(expert => swatch('expert ' + expert, expert_colour(layer, expert))));
  if (counts.size > most.length) box.append(make('span', 'and ' + (counts.size - most.length) + ' that led less often'));
}

function paint() {
  const by = $('colour').value;
  run.tokens.forEach((token, i) => {
    spans[i].style.background = colour_of(token, by);
  });
  legend(by);
}

function colours() {
  if (run.federation) {
    const option = make('option', 'leading specialist');
    option.value = 'specialist';
    option.selected = run.federation.told;
    option.disabled = !run.federation.told;
    $('colour').append(option);
  }
  for (const [layer, uses] of run.experts) {
    if (!uses.length) continue;
    const option = make('option', 'leading expert of layer ' + layer);
    option.value = layer;
    $('colour').append(option);
  }
  $('colour').addEventListener('change', paint);
}
