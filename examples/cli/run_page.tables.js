// SPDX-License-Identifier: Apache-2.0
// The run's page: one token's account, the tables, and the account of all tokens for print.
function row(table, cells) {
  const tr = make('tr');
  tr.append(...cells);
  table.append(tr);
}

// Makes a table's head of the columns' names (texts or terms); those at `numbers` stand over
// numbers.
function head(table, names, numbers = []) {
  row(table, names.map((name, i) => {
    const cell = make('th', undefined, numbers.includes(i) ? 'number' : '');
    cell.append(name);
    cell.scope = 'col';
    return cell;
  }));
}

function title(text) {
  const cell = make('th', text);
  cell.scope = 'row';
  return cell;
}

function bar(value, largest, both) {
  const cell = make('td', undefined, 'bar'), track = make('div', undefined, both ? 'track both' : 'track');
  const fill = make('i', undefined, value < 0 ? 'minus' : '');
  const width = Math.min(1, Math.abs(value) / largest) * (both ? 50 : 100);
  fill.style.width = width + '%';
  fill.style.left = both ? (value < 0 ? 50 - width : 50) + '%' : '0';
  track.append(fill);
  cell.append(track);
  return cell;
}

const number = (value, digits = 3) => make('td', value === null ? '' : value.toFixed(digits), 'number');
const term_name = ([part, layer, expert]) =>
  (layer < 0 ? '' : 'layer ' + layer + ' ') + part.replace('_', ' ') + (expert < 0 ? '' : ' ' + expert);

// ---- One token --------------------------------------------------------------------------------
function sampler_text(token) {
  if (!token.sampler) return '';
  const [candidates, probability] = token.sampler;
  return candidates === 1 ? 'The sampler left it alone to choose from.' :
    'The sampler left ' + candidates + ' tokens to choose from' + (probability === null ? '.' :
    ', and it ' + (100 * probability).toFixed(2) + ' % among them.');
}

function constraint_text(token) {
  if (!token.constraint) return '';
  const [allowed, removed, ruledOut, limited, attempt] = token.constraint;
  return attempt > 0 && allowed === 0 ? 'Attempt ' + attempt + ' after a deadlock: no mask.' :
    (attempt > 0 ? 'Attempt ' + attempt + ', after an answer that was not accepted. ' : '') +
    (allowed === 1 ? 'The constraint left no other token' : 'The constraint allowed ' + allowed + ' tokens') +
    (removed === null ? '.' : ' and took ' + (100 * removed).toFixed(2) + ' % of the probability away.') +
    (ruledOut && token.others.length ? ' The model would have said “' + shown(token.others[0][0]) + '”.' : '') +
    (limited ? ' The token limit ruled out more.' : '');
}

const specialist_of = i => run.federation ? ' by ' + run.federation.specialists[i][0] : '';

function show_sum(box, token, sum, i) {
  const heading = make('h3', 'Its ');
  heading.append(word('logit'), specialist_of(i) + ' as a sum');
  box.append(heading);
  if (i === 0) {
    box.append(make('p', 'Direct logit attribution, each norm’s scale frozen at its value: recorded arithmetic, not a reason. Beside it the runner-up “' +
      shown(token.other) + '”.' + (run.federation ? ' Each specialist’s own logit: the joint is no sum of these.' : ''), 'soft'));
  }
  const table = make('table');
  const largest = Math.max(1e-9, ...sum.terms.map(term => Math.abs(term[3])));
  head(table, ['part', 'adds', '', 'runner-up'], [1, 3]);
  for (const term of sum.terms) {
    const name = title(term[0] === 'rounding' ? undefined : term_name(term));
    if (term[0] === 'rounding') name.append(word('rounding'));
    const other = number(term[4]);
    other.classList.add('soft');
    row(table, [name, number(term[3]), bar(term[3], largest, true), other]);
  }
  row(table, [title('logit'), number(sum.logit[0]), make('td'), number(sum.logit[1])]);
  box.append(table);
}

function show_shares(box, token) {
  const is_term = run.federation.shares === 'term';
  box.append(make('h3', is_term ? 'Specialists: terms of its log-probability' : 'Specialists: shares'));
  const table = make('table');
  const largest = Math.max(1e-9, ...token.shares.map(one => Math.abs(one[2])));
  head(table, [word('specialist'), 'log p', 'weight', is_term ? 'term' : 'share', ''], [1, 2, 3]);
  for (const [i, [lp, weight, share]] of token.shares.entries()) {
    const name = title(run.federation.specialists[i][0]);
    name.style.background = specialist_colour(i);
    name.style.color = 'var(--ink)';
    row(table, [name, number(lp), number(weight), number(share), bar(share || 0, is_term ? largest : 1, is_term)]);
  }
  if (is_term) row(table, [title('−log Z'), make('td'), make('td'), number(-token.normaliser), make('td')]);
  box.append(table);
  box.append(make('p', 'Residual of the sum: ' + (token.residual === null ? 'unknown' : token.residual.toExponential(1)), 'soft'));
}

function show(token) {
  const box = $('account');
  $('token').scrollTop = 0;
  box.replaceChildren(make('p', (token.made ? 'Answer, position ' : token.hidden ? 'Position ' : 'Prompt, position ') + token.position + ': '));
  box.firstChild.append(make('strong', told(token)));
  if (token.special) box.append(make('p', 'A special token: a tag of the conversation’s template, no part of what is said.', 'soft'));
  if (token.lp === null) {
    box.append(make('p', token.hidden ? 'What the model said of it was left out or is encrypted.' :
      'Part of the prompt: no probability was recorded.', 'soft'));
  } else {
    box.append(say([(token.made ? 'Chosen with probability ' : 'Given; the model gave it ') + percent(token.lp) + ' (' +
      token.lp.toFixed(3) + ' ', word('nats'), '), ', word('entropy'), ' ' + token.entropy.toFixed(3) + ' nats']));
    for (const text of [sampler_text(token), constraint_text(token)]) {
      if (text) box.append(make('p', text, 'soft'));
    }
  }
  for (const [i, sum] of (token.sums || []).entries()) show_sum(box, token, sum, i);
  if (token.shares) show_shares(box, token);
  if (token.others && token.others.length) {
    box.append(make('h3', 'Alternatives'));
    const table = make('table');
    head(table, ['token', 'probability', ''], [1]);
    for (const [text, lp] of token.others) {
      row(table, [title(shown(text)), make('td', percent(lp), 'number'), bar(Math.exp(lp), 1, false)]);
    }
    box.append(table);
  }
  if (token.routes && token.routes.length) {
    box.append(make('h3', token.made ? 'Experts that made it' : 'Experts that read it'));
    const table = make('table');
    head(table, ['layer', word('expert'), word('weight', 'gate weight'), ''], [2]);
    for (const [layer, routes] of token.routes) {
      const sum = routes.reduce((all, [, weight]) => all + (weight || 0), 0) || 1;
      for (const [i, [expert, weight]] of routes.entries()) {
        row(table, [title(i ? '' : layer), make('td', expert < 0 ? 'left out' : 'expert ' + expert), number(weight),
                    bar(weight === null ? 0 : weight / sum, 1, false)]);
      }
    }
    box.append(table);
  }
}

// ---- Experts by layer, specialists ------------------------------------------------------------
function heat() {
  const table = $('heat');
  const widest = Math.max(0, ...run.experts.map(one => one[1].length));
  if (!widest) {
    table.previousElementSibling.hidden = true;
    return row(table, [make('td', 'none: a dense model', 'soft')]);
  }
  head(table, ['layer', ...Array(widest).keys()]);
  for (const [layer, uses] of run.experts) {
    if (run.hidden_layers.includes(layer)) {
      const cell = make('td', 'left out or cannot be read', 'soft');
      cell.colSpan = widest;
      row(table, [title(layer), cell]);
      continue;
    }
    const total = uses.reduce((a, b) => a + b, 0) || 1, most = Math.max(1, ...uses);
    row(table, [title(layer), ...uses.map((count, expert) => {
      const share = 100 * count / total;
      const cell = make('td', share < 10 ? share.toFixed(1) : share.toFixed(0), 'cell');
      cell.title = 'layer ' + layer + ', expert ' + expert + ': ' + count + ' times, ' + share.toFixed(2) + ' %';
      cell.style.background = 'color-mix(in srgb, var(--heat) ' + Math.round(65 * count / most) + '%, transparent)';
      return cell;
    })]);
  }
}

function specialists() {
  if (!run.federation) {
    for (const node of document.querySelectorAll('[data-of="federation"]')) node.hidden = true;
    return;
  }
  $('federation').hidden = false;
  const table = $('specialists'), is_term = run.federation.shares === 'term';
  const of = Math.max(1, run.federation.tokens);
  head(table, [run.federation.combiner, is_term ? 'mean term' : 'mean share', 'leads', ''], [1, 2]);
  for (const [i, [name, share, leading]] of run.federation.specialists.entries()) {
    const cell = title(name);
    cell.style.background = specialist_colour(i);
    cell.style.color = 'var(--ink)';
    if (!run.federation.told) {
      row(table, [cell, make('td', 'left out or cannot be read', 'soft'), make('td'), make('td')]);
      continue;
    }
    row(table, [cell, number(share / of), make('td', leading + ' of ' + run.federation.tokens, 'number'), bar(leading / of, 1, false)]);
  }
}

// ---- All chosen tokens, for print -------------------------------------------------------------
// Pairs of what a line is about and what it says.
function record_lines(token) {
  const lines = [['', sampler_text(token)], ['', constraint_text(token)]];
  lines.push(['Alternatives', (token.others || []).map(([text, lp]) => '“' + shown(text) + '” ' + percent(lp)).join(', ')]);
  lines.push(['Experts with their gate weights', (token.routes || []).map(([layer, routes]) => 'layer ' + layer + ': ' +
    routes.map(([expert, weight]) => expert < 0 ? 'left out' : expert + ' (' + (weight === null ? 'left out' : weight.toFixed(3)) + ')')
      .join(', ')).join('; ')]);
  for (const [i, sum] of (token.sums || []).entries()) {
    lines.push(['Its logit' + specialist_of(i) + ' as a sum', sum.logit[0].toFixed(3) + ' (in brackets that of the runner-up “' +
      shown(token.other) + '”, ' + sum.logit[1].toFixed(3) + ') = ' +
      sum.terms.map(term => term_name(term) + ' ' + term[3].toFixed(3) + ' (' + term[4].toFixed(3) + ')').join(', ') +
      '; recorded arithmetic, not a reason']);
  }
  lines.push(['Specialists: log p, weight, ' + (run.federation ? run.federation.shares : ''), (token.shares || []).map((one, i) =>
    run.federation.specialists[i][0] + ' ' + one.map(value => value === null ? 'unknown' : value.toFixed(3)).join(' / ')).join('; ')]);
  return lines.filter(line => line[1]);
}

function record_row(table, token) {
  const how = make('td');
  for (const [about, text] of record_lines(token)) {
    const line = make('p');
    if (about) line.append(make('b', about + ': '));
    line.append(text);
    how.append(line);
  }
  row(table, [make('td', token.position), make('td', told(token)), make('td', token.lp === null ? 'left out' :
    percent(token.lp) + ' (' + token.lp.toFixed(3) + ' nats), entropy ' + token.entropy.toFixed(3)), how]);
}

// Rows are made behind the first picture of the page, some at a time, and by `all` those that lack.
const chosen = run.tokens.filter(token => token.made);
let written = 0;
function record(all) {
  const rows = document.createDocumentFragment();
  const until = all ? chosen.length : Math.min(chosen.length, written + 100);
  for (; written < until; ++written) record_row(rows, chosen[written]);
  $('rows').append(rows);
  if (written < chosen.length) setTimeout(record);
}

// What is folded on the screen is printed, also by a browser that knows no ::details-content.
const folded = () => document.querySelectorAll('#facts details:not([open])');
let opened = [];
addEventListener('beforeprint', () => {
  record(true);
  opened = [...folded()];
  for (const one of opened) one.open = true;
});
addEventListener('afterprint', () => {
  for (const one of opened) one.open = false;
});

facts();
colours();
specialists();
build();
paint();
heat();
const first = run.tokens.findIndex(token => token.made);
select(first < 0 ? 0 : first, false);
$('token').hidden = !spans.length;
$('lacking').hidden = !run.tokens.some(token => token.hidden);
requestAnimationFrame(() => setTimeout(record));
