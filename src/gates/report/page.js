// SPDX-License-Identifier: Apache-2.0
// The report's page. What models said goes into text nodes alone.
const report = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const make = (tag, text, cls) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (cls) node.className = cls;
  return node;
};
const turns = /[\u202a-\u202e\u2066-\u2069]/g;
const shown = text => text.replace(turns, c => '[U+' + c.codePointAt(0).toString(16).toUpperCase() + ']');
const percent = (x, digits = 1) => x === null || x === undefined ? '–' : (100 * x).toFixed(digits) + ' %';
const number = (x, digits = 4) => x === null || x === undefined ? '–' : String(+x.toPrecision(digits));
const range = (pair, show) => pair === null || pair === undefined ? '–' : show(pair[0]) + ' to ' + show(pair[1]);
const fileName = path => path.split('/').pop();
const count = (n, one, many) => n + ' ' + (n === 1 ? one : many);

// Rows of texts or nodes; a number's cell stands at the right.
function table(node, heads, rows) {
  node.replaceChildren();
  const head = make('tr');
  for (const [text, cls] of heads) {
    const cell = make('th', text, cls);
    cell.scope = 'col';
    head.append(cell);
  }
  const top = make('thead'), body = make('tbody');
  top.append(head);
  for (const {cells, cls} of rows) {
    const line = make('tr', undefined, cls);
    cells.forEach((value, at) => {
      const cell = make(at === 0 ? 'th' : 'td', undefined, heads[at][1]);
      if (at === 0) cell.scope = 'row';
      cell.append(value instanceof Node ? value : document.createTextNode(value));
      line.append(cell);
    });
    body.append(line);
  }
  node.append(top, body);
}

const outcomeClass = outcome => outcome.split(' ')[0];

// ---- What the page says first ------------------------------------------------------------------
function partedLine(parting) {
  const line = make('p');
  line.append(make('strong', parting.task + '/' + parting.id + ': '), document.createTextNode(parting.text));
  return line;
}

function showParted(candidate) {
  const place = $('parted');
  place.replaceChildren();
  const partings = candidate.partings.filter(p => p.kind !== 'nowhere');
  if (candidate.first) place.append(make('p', 'In the mean of all items, the first place that stands out: ' + candidate.first + '.', 'first'));
  if (candidate.comparison.flips.length === 0 && partings.length === 0) {
    if (candidate.first) return;
    const same = candidate.comparison.equal_digests === candidate.comparison.items;
    place.append(make('p', same ? 'Nowhere: every answer is the same to the last bit.' : 'No item is answered rightly by one alone.'));
    return;
  }
  if (partings.length === 0) {
    if (!candidate.first) place.append(make('p', 'Evaluations with --audit on both sides tell the layer and the expert here; the tokens where answers part stand at the flips below.', 'soft'));
    return;
  }
  const places = new Map();
  for (const parting of partings) {
    const key = parting.kind === 'input' ? 'the input (tokenizer or template)'
      : parting.kind === 'value' && parting.layer >= 0 ? 'layer ' + parting.layer + (parting.expert >= 0 ? ', expert ' + parting.expert : '') + ': ' + parting.probe
      : parting.kind === 'value' ? parting.probe : parting.kind === 'token' ? 'a near tie' : 'the length';
    places.set(key, (places.get(key) || 0) + 1);
  }
  const sorted = [...places].sort((a, b) => b[1] - a[1]);
  place.append(make('p', 'Of ' + count(partings.length, 'item', 'items') + ' with logs, the first thing '
    + (candidate.has_noise ? 'above noise' : 'above rounding') + ' was: '
    + sorted.map(([key, n]) => key + ' (' + n + ')').join('; ') + '.'));
  for (const parting of partings.slice(0, 5)) place.append(partedLine(parting));
  if (partings.length > 5) {
    const more = make('details');
    more.append(make('summary', count(partings.length - 5, 'further item', 'further items')));
    for (const parting of partings.slice(5)) more.append(partedLine(parting));
    place.append(more);
  }
}

function showVerdict(candidate) {
  const verdict = candidate.verdict, line = $('verdict');
  const flips = candidate.comparison.flips;
  const lost = flips.filter(f => f.is_lost).length;
  const summary = count(candidate.comparison.items, 'item', 'items') + ', ' + lost + ' lost, ' + (flips.length - lost) + ' gained, '
    + candidate.comparison.equal_digests + ' the same to the last bit';
  line.className = verdict ? outcomeClass(verdict.outcome) : '';
  line.textContent = fileName(candidate.evaluation.path) + ' beside ' + fileName(report.baseline.path) + ': '
    + (verdict ? verdict.outcome + ' by gate ' + verdict.gate + '; ' : '') + summary + '.';
}

// ---- Tables --------------------------------------------------------------------------------------
function showRules(candidate) {
  $('gate').hidden = !candidate.verdict;
  if (!candidate.verdict) return;
  table($('rules'), [['rule'], ['outcome'], ['found', 'number'], ['bound', 'number'], ['interval', 'number'], ['noise alone', 'number'], ['would decide'], ['next move']],
    candidate.verdict.rules.map(rule => {
      const show = x => rule.unit === 'share' ? percent(x, 2) : number(x, 3);
      const noise = rule.noise.filter(x => x !== null);
      const open = rule.outcome !== 'passes';
      return {cells: [rule.rule, make('span', rule.outcome + (rule.decided_by ? ' (by ' + rule.decided_by + ')' : ''), outcomeClass(rule.outcome)),
        show(rule.found), show(rule.bound), rule.interval[0] === null && rule.interval[1] === null ? '–' : range(rule.interval, show),
        noise.length ? 'up to ' + show(Math.max(...noise)) : '–',
        rule.items_needed && open ? rule.items_needed + ' ' + rule.things : '', rule.why || (open ? rule.next : '')]};
    }));
}

function showTasks(candidate) {
  table($('tasks'), [['task'], ['domain'], ['items', 'number'], ['baseline', 'number'], ['candidate', 'number'], ['lost', 'number'], ['gained', 'number'], ['drop, 95 % bounds', 'number'], ['same bits', 'number'], ['']],
    candidate.comparison.tasks.filter(task => task.items > 0).map(task => {
      const right = n => task.items ? percent(n / task.items) : '–';
      const isText = task.kind === 'text';
      return {cls: task.is_counted || isText ? '' : 'uncounted', cells: [task.name, task.domain, String(task.items),
        isText ? '–' : right(task.answers.both + task.answers.lost) + ' (' + range(task.baseline_success, x => percent(x, 0)) + ')',
        isText ? '–' : right(task.answers.both + task.answers.gained) + ' (' + range(task.candidate_success, x => percent(x, 0)) + ')',
        isText ? '–' : String(task.answers.lost), isText ? '–' : String(task.answers.gained),
        isText ? '–' : range(task.drop_interval, x => percent(x)), String(task.equal_digests),
        isText ? '' : task.not_counted]};
    }));
}

// Lets the keyboard reach a node that may be wider or longer than its place, and names it.
function scrolls(node, name) {
  node.tabIndex = 0;
  node.setAttribute('role', 'region');
  node.setAttribute('aria-label', name);
  return node;
}

function answerSide(title, item, text, index, cls) {
  const side = make('div'), pre = scrolls(make('pre'), title + ' of ' + item);
  side.append(make('h3', title, cls));
  const at = Math.min(index, text.length);
  pre.append(document.createTextNode(shown(text.slice(0, at))));
  if (at < text.length) pre.append(make('span', shown(text.slice(at)), 'parted'));
  side.append(pre);
  return side;
}

function showFlips(candidate) {
  const place = $('flip-list');
  place.replaceChildren();
  const flips = candidate.comparison.flips;
  if (flips.length === 0) place.append(make('p', 'None.'));
  for (const flip of flips) {
    const box = make('details'), sides = make('div', undefined, 'sides');
    const parting = flip.parting;
    const where = parting.input_differs ? 'the input differs'
      : parting.index >= 0 ? 'the answers part at token ' + parting.index + ' (' + parting.baseline_token + ' and ' + parting.candidate_token + ')'
      : 'a choice';
    box.append(make('summary', (flip.is_lost ? 'lost: ' : 'gained: ') + flip.task + '/' + flip.id + (flip.is_critical ? ' (critical)' : '')
      + (flip.is_counted ? '' : ' (its task does not count)') + ': ' + where));
    box.append(make('p', 'Right: ' + shown(flip.expected)));
    const a = flip.baseline_answer, b = flip.candidate_answer;
    let same = 0;
    while (same < a.length && same < b.length && a[same] === b[same]) ++same;
    const item = flip.task + '/' + flip.id;
    sides.append(answerSide('Baseline', item, a, same, 'base'), answerSide('Candidate', item, b, same, 'cand'));
    box.append(sides);
    for (const one of candidate.partings) {
      if (one.task === flip.task && one.id === flip.id) box.append(make('p', 'By the logs: ' + one.text));
    }
    place.append(box);
  }
}

function showChanges(candidate) {
  const names = {parse_lost: 'can no longer be parsed', parse_gained: 'can be parsed now', new_loop: 'runs in circles', loop_gone: 'runs in circles no more',
    new_refusal: 'refuses a harmless request', new_unsafe: 'complies with an unsafe one', new_error: 'failed'};
  table($('changes'), [['item'], ['what'], ['parts at token', 'number']],
    candidate.comparison.changes.map(one => ({cells: [one.task + '/' + one.id, names[one.what] || one.what,
      one.parting.index >= 0 ? String(one.parting.index) : '–']})));
}

function showTexts(candidate) {
  const place = $('texts'), text = candidate.comparison.text;
  place.replaceChildren();
  if (!text) return place.append(make('p', 'The suite has none.'));
  place.append(make('p', count(text.tokens, 'token', 'tokens') + ' of ' + count(text.texts, 'text', 'texts') + ': perplexity ' + number(text.baseline_perplexity) + ' and '
    + number(text.candidate_perplexity) + '; KL mean ' + number(text.kl.mean, 3) + ' (' + range(text.kl_interval, x => number(x, 3)) + '), 99.9th percentile '
    + number(text.kl_999, 3) + ' nats; the same most probable token ' + percent(text.agreement.mean, 2) + '; largest drop '
    + number(text.largest_drop, 3) + ' nats at token ' + text.largest_position + ' of ' + text.largest_item + '.'));
  const wide = scrolls(make('div', undefined, 'wide'), 'Given texts by position'), node = make('table');
  table(node, [['positions'], ['tokens', 'number'], ['KL, nats', 'number'], ['same most probable', 'number']],
    text.positions.map(bucket => ({cells: [bucket.first + ' to ' + bucket.last, String(bucket.tokens), number(bucket.kl, 3), percent(bucket.agreement)]})));
  wide.append(node);
  place.append(wide);
}

// ---- Drawings ------------------------------------------------------------------------------------
const svgNode = (tag, attributes, text) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// A frame with ticks; returns the drawing and what places a point in it.
function frame(label, xs, ys, xTitle, yTitle, show) {
  const width = 640, height = 300, left = 70, right = 16, top = 14, bottom = 44;
  const drawing = svgNode('svg', {viewBox: '0 0 ' + width + ' ' + height, role: 'img', 'aria-label': label});
  const x = v => left + (width - left - right) * (v - xs[0]) / (xs[1] - xs[0] || 1);
  const y = v => height - bottom - (height - top - bottom) * (v - ys[0]) / (ys[1] - ys[0] || 1);
  for (let i = 0; i <= 4; ++i) {
    const xv = xs[0] + (xs[1] - xs[0]) * i / 4, yv = ys[0] + (ys[1] - ys[0]) * i / 4;
    drawing.append(svgNode('line', {x1: left, x2: width - right, y1: y(yv), y2: y(yv), class: 'grid'}));
    drawing.append(svgNode('text', {x: left - 6, y: y(yv) + 4, 'text-anchor': 'end'}, show.y(yv)));
    drawing.append(svgNode('text', {x: x(xv), y: height - bottom + 18, 'text-anchor': 'middle'}, show.x(xv)));
  }
  drawing.append(svgNode('line', {x1: left, x2: width - right, y1: y(ys[0]), y2: y(ys[0]), class: 'axis'}));
  drawing.append(svgNode('text', {x: (left + width) / 2, y: height - 6, 'text-anchor': 'middle'}, xTitle));
  drawing.append(svgNode('text', {x: 14, y: (top + height - bottom) / 2, 'text-anchor': 'middle', transform: 'rotate(-90 14 ' + (top + height - bottom) / 2 + ')'}, yTitle));
  return {drawing, x, y};
}

function showCalibration(candidate) {
  const place = $('calibration');
  place.replaceChildren();
  const sides = [['base', 'baseline', candidate.comparison.baseline_calibration], ['cand', 'candidate', candidate.comparison.candidate_calibration]];
  if (!sides[0][2].items) return place.append(make('p', 'The suite has no choices.'));
  const {drawing, x, y} = frame('Share of right choices by probability, baseline and candidate', [0, 1], [0, 1], 'probability of the chosen choice', 'share that is right', {x: v => percent(v, 0), y: v => percent(v, 0)});
  drawing.append(svgNode('line', {x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: 'axis', 'stroke-dasharray': '4 4'}));
  for (const [cls, , calibration] of sides) {
    const bins = calibration.bins.filter(bin => bin.items > 0);
    drawing.append(svgNode('polyline', {points: bins.map(bin => x(bin.probability) + ',' + y(bin.right)).join(' '), class: 'line ' + cls}));
    for (const bin of bins) drawing.append(svgNode('circle', {cx: x(bin.probability), cy: y(bin.right), r: Math.min(8, 2 + Math.sqrt(bin.items) / 2), class: cls}));
  }
  place.append(drawing);
  for (const [cls, name, calibration] of sides) {
    place.append(make('p', name + ': expected calibration error ' + percent(calibration.expected_error) + ', Brier score ' + number(calibration.brier, 3)
      + ' of ' + count(calibration.items, 'choice', 'choices'), cls));
  }
}

function showPlot() {
  const place = $('plot');
  const points = report.candidates.filter(c => c.evaluation.target.bytes)
    .map(c => ({name: fileName(c.evaluation.path), bytes: c.evaluation.target.bytes, flips: c.comparison.flips.length / Math.max(1, c.comparison.items),
      kl: c.comparison.text ? c.comparison.text.kl.mean : null}));
  if (points.length === 0) return place.append(make('p', 'The sizes of the candidates are not known.', 'soft'));
  const most = 1.1 * Math.max(...points.map(p => p.bytes), report.baseline.target.bytes || 0);
  for (const [field, title, show] of [['kl', 'KL, nats a token', v => number(v, 2)], ['flips', 'flips, of all items', v => percent(v)]]) {
    const seen = points.filter(p => p[field] !== null);
    if (seen.length === 0) continue;
    const high = 1.1 * Math.max(...seen.map(p => p[field])) || 1e-9;
    const {drawing, x, y} = frame(title + ' against megabytes of weights', [0, most], [0, high], 'weights, MB', title, {x: v => (v / 1e6).toFixed(0), y: show});
    for (const point of seen) {
      drawing.append(svgNode('circle', {cx: x(point.bytes), cy: y(point[field]), r: 5, class: 'cand'}));
      const isRight = point.bytes > 0.7 * most;
      drawing.append(svgNode('text', {x: x(point.bytes) + (isRight ? -9 : 9), y: y(point[field]) + 4, 'text-anchor': isRight ? 'end' : 'start'}, point.name));
    }
    if (report.baseline.target.bytes) drawing.append(svgNode('line', {x1: x(report.baseline.target.bytes), x2: x(report.baseline.target.bytes), y1: y(0), y2: y(high), class: 'base line', 'stroke-dasharray': '5 4'}));
    place.append(drawing);
  }
  place.append(make('p', 'The broken line is the baseline.', 'soft'));
}

function showSpeed(candidate) {
  const ratio = pair => pair ? [number(pair.medians[0], 3), number(pair.medians[1], 3), number(pair.ratio, 3), range(pair.interval, x => number(x, 3))] : ['–', '–', '–', '–'];
  const megabytes = target => target.bytes ? (target.bytes / 1e6).toFixed(1) : '–';
  const rows = [['time to the first token, s', ...ratio(candidate.comparison.first_token_seconds)],
    ['time between tokens, s', ...ratio(candidate.comparison.token_seconds)],
    ['weights, MB', megabytes(report.baseline.target), megabytes(candidate.evaluation.target), '', ''],
    ['the whole suite, s', number(report.baseline.seconds, 3), number(candidate.evaluation.seconds, 3), '', '']];
  table($('speed'), [['what'], ['baseline', 'number'], ['candidate', 'number'], ['ratio', 'number'], ['interval', 'number']], rows.map(cells => ({cells})));
}

function showFacts(candidate) {
  const a = {file: report.baseline.path, sha256: report.baseline.sha256, ...report.baseline.target};
  const b = {file: candidate.evaluation.path, sha256: candidate.evaluation.sha256, ...candidate.evaluation.target};
  const text = value => value === undefined ? '–' : typeof value === 'string' ? value : JSON.stringify(value);
  const rows = [['suite', report.suite.name + ' ' + report.suite.version + ', ' + report.suite.sha256, '']];
  for (const name of new Set([...Object.keys(a), ...Object.keys(b)])) rows.push([name, text(a[name]), text(b[name])]);
  table($('facts'), [['what'], ['baseline'], ['candidate']], rows.map(cells => ({cells})));
}

function show(candidate) {
  for (const part of [showVerdict, showParted, showRules, showTasks, showFlips, showChanges, showTexts, showCalibration, showSpeed, showFacts]) part(candidate);
}

if (report.candidates.length > 1) {
  const label = make('label', 'Candidate '), select = make('select');
  report.candidates.forEach((candidate, at) => {
    const option = make('option', fileName(candidate.evaluation.path));
    option.value = at;
    select.append(option);
  });
  select.addEventListener('change', () => show(report.candidates[+select.value]));
  label.append(select);
  $('choose').append(label);
}
showPlot();
show(report.candidates[0]);
