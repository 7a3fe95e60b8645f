'use strict';
// Draws what `tapehead report` wrote into #data. Text from a run only ever becomes text: textContent, never markup.
const runs = JSON.parse(document.getElementById('data').textContent).runs;
const alone = runs.length === 1;
// What a loss is per: a token, or the row of a head that was trained alone.
const counted = ending => [...new Set(runs.map(run => run.unit + ending))].join(' or ');

// ---- Small tools

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const byId = id => document.getElementById(id);
const variable = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colorOf = index => variable(`--run-${index % 8}`);
const format = (value, digits = 4) =>
  value === 0 ? '0'
  : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7 ? value.toExponential(2)
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en')
  : String(Number(value.toPrecision(digits)));
const percent = value => `${(100 * value).toFixed(1)} %`;
const bytes = value => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
};
const duration = seconds => {
  const s = Math.round(seconds), two = n => String(n).padStart(2, '0');
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
};
/** The index of the x, which rise, that is nearest to `at`. */
const nearest = (x, at) => {
  let low = 0, high = x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle + 1; else high = middle;
  }
  return low > 0 && at - x[low - 1] < x[low] - at ? low - 1 : low;
};
const last = list => list[list.length - 1];

// ---- Curves

const CHARTS = [
  {title: 'Loss', unit: `nats per ${counted('')}`, log: true, series: [
    {key: 'loss', name: 'training', look: 'faint'}, {key: 'smoothed_loss', name: 'smoothed'},
    {key: 'held_out_loss', name: 'held out', evaluated: true, color: 1}]},
  {title: 'Head accuracy', unit: `of held-out ${counted('s')}, by its likeliest guess`, format: percent, series: [
    {key: 'held_out_accuracy', name: '', evaluated: true, color: 1}]},
  {title: 'Head entropy', unit: `nats, of its guesses of held-out ${counted('s')}`, series: [
    {key: 'held_out_entropy', name: '', evaluated: true, color: 1}]},
  {title: 'Gradient norm', unit: 'before clipping', log: true, series: [{key: 'grad_norm', name: ''}]},
  {title: 'Learning rate', unit: '', log: true, series: [{key: 'lr', name: ''}]},
  {title: 'Speed', unit: `${counted('s')} per second`, zero: true, series: [{key: 'tokens_per_second', name: ''}]},
];
const drawn = [];  // every chart of curves, to zoom and to be read together
const hidden = new Set();  // indices of runs

/** The lines of a chart: one for each run and each of its series that the run has. Where colours tell runs apart, what
 *  was evaluated is dashed. */
const linesOf = chart => runs.flatMap((run, index) => chart.series
  .filter(s => run.series[s.key]?.x.length)
  .map(s => ({...s, ...run.series[s.key], run: index, label: `${index}:${s.key}`,
              look: s.evaluated && !alone ? 'dashed' : s.look,
              colorIndex: alone ? s.color ?? 0 : index})));

/** Rows of x and a value or null for each line, as Dygraph takes them. */
const rowsOf = lines => {
  const rows = new Map();
  lines.forEach((line, column) => line.x.forEach((x, i) => {
    if (!rows.has(x)) rows.set(x, [x, ...lines.map(() => null)]);
    rows.get(x)[column + 1] = line.y[i];
  }));
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
};

const key = (color, look = '') => {
  const line = element('span', {className: `key ${look}`});
  if (look === 'area') line.style.background = color; else line.style.borderColor = color;
  return line;
};

const AXES = () => ({axisLineColor: variable('--line'), gridLineColor: variable('--grid'), gridLineWidth: 1});

/** A card with title, the line that values are read from, and room for a plot. */
const card = (title, unit) => {
  const read = element('div', {className: 'read'}), plot = element('div', {className: 'plot'});
  const box = element('section', {className: 'card'}, element('h2', {}, title, ' ', element('small', {}, unit)), read, plot);
  byId('charts').append(box);
  return {box, read, plot};
};

/** On a finger's touch, reads the value there; the page still scrolls. A mouse drags to zoom and double-clicks back. */
const readByTouch = (plot, graph, select) => {
  for (const kind of ['touchstart', 'touchmove']) {
    plot.addEventListener(kind, event => {
      select(graph.toDataXCoord(event.touches[0].clientX - plot.getBoundingClientRect().left));
    }, {passive: true});
  }
};
const interaction = {...Dygraph.defaultInteractionModel ?? Dygraph.Interaction.defaultModel};
for (const kind of ['touchstart', 'touchmove', 'touchend']) delete interaction[kind];
interaction.dblclick = () => zoomAll(null);

function drawChart(chart) {
  const lines = linesOf(chart);
  if (!lines.length) return;
  const {box, read, plot} = card(chart.title, chart.unit);
  if (!drawn.length) box.classList.add('first');
  const show = chart.format ?? format;
  const me = {};

  me.read = at => {
    const shown = lines.filter(line => !hidden.has(line.run));
    const value = line => at === null ? last(line.y) : at > last(line.x) ? null : line.y[nearest(line.x, at)];
    const step = at === null ? 'at the end' : ['step ', element('b', {}, at.toLocaleString('en'))];
    read.replaceChildren(element('i', {}, ...[step].flat()), ...shown.map(line => {
      const name = [alone ? '' : runs[line.run].name, line.name].filter(Boolean).join(' '), y = value(line);
      return element('i', {}, key(colorOf(line.colorIndex), line.look), name, ' ', element('b', {}, y === null ? '–' : show(y)));
    }));
  };
  me.select = at => drawn.forEach(other => other.read(at));
  me.options = () => ({
    colors: lines.map(line => colorOf(line.colorIndex)),
    series: Object.fromEntries(lines.map(line => [line.label, {
      strokeWidth: line.look === 'faint' ? 1 : 2,
      strokePattern: line.look === 'dashed' ? [6, 3] : null,
      drawPoints: line.evaluated && line.x.length <= 60, pointSize: 2.5,
    }])),
    visibility: lines.map(line => !hidden.has(line.run)),
    logscale: !!chart.log && byId('log').checked,
    ...AXES(),
  });

  const rows = rowsOf(lines);
  me.graph = new Dygraph(plot, rows, {
    labels: ['step', ...lines.map(line => line.label)],
    legend: 'never', connectSeparatedPoints: true, interactionModel: interaction,
    includeZero: !!chart.zero, highlightCircleSize: 3.5, xRangePad: 4, yRangePad: 6,
    axes: {x: {axisLabelFormatter: x => Number.isInteger(x) ? compact(x) : ''},
           y: {axisLabelFormatter: y => chart.format ? percent(y) : compact(y), axisLabelWidth: 52}},
    highlightCallback: (event, x) => me.select(x),
    unhighlightCallback: () => me.select(null),
    plotter: event => {  // the single steps stand behind their mean
      event.drawingContext.globalAlpha = lines.find(l => l.label === event.setName).look === 'faint' ? .35 : 1;
      Dygraph.Plotters.linePlotter(event);
      event.drawingContext.globalAlpha = 1;
    },
    dateWindow: allSteps(),
    zoomCallback: (from, to) => zoomAll([from, to]),
    ...me.options(),
  });
  const steps = rows.map(row => row[0]);
  readByTouch(plot, me.graph, at => {
    const row = nearest(steps, at);
    me.graph.setSelection(row);
    me.select(steps[row]);
  });
  drawn.push(me);
  me.read(null);
}

const compact = value => {
  const size = Math.abs(value);
  return size >= 1e6 ? `${Number((value / 1e6).toPrecision(4))}M` : size >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k`
    : size > 0 && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(4)));
};

/** The range of steps that any curve has: all charts show it. */
const allSteps = () => {
  const ends = runs.flatMap(run => Object.values(run.series).map(({x}) => [x[0], last(x)]));
  return [Math.min(...ends.map(([from]) => from)), Math.max(...ends.map(([, to]) => to))];
};

function zoomAll(range) {
  byId('unzoom').hidden = !range;
  for (const {graph} of drawn) graph.updateOptions({dateWindow: range ?? allSteps(), valueRange: null});
}

// ---- Memory over one step

const CLASSES = [['head', 'head'], ['activations', 'activations'], ['gradients', 'gradients'],
                 ['optimizer', 'optimiser'], ['parameters', 'parameters']];  // the last stands at the bottom

function drawMemory(run) {
  drawMoments(run, run.memory?.moments, 'as planned before the first step');
  drawMoments(run, run.memory?.counted, 'as counted in the first step, after every operation');
}

function drawMoments(run, moments, caption) {
  if (!moments?.length) return;
  const {read, plot} = card(`Memory in one step${alone ? '' : `, ${run.name}`}`, caption);
  const colors = () => CLASSES.map((_, i) => colorOf([1, 0, 6, 3, 2][i]));
  const total = moment => CLASSES.reduce((sum, [name]) => sum + (moment[name] ?? 0), 0);
  const peak = moments.reduce((best, m, i) => total(m) > total(moments[best]) ? i : best, 0);
  const me = {};
  me.read = at => {
    const moment = moments[Math.max(0, Math.min(moments.length - 1, Math.round(at ?? peak)))];
    read.replaceChildren(element('i', {}, at === null ? 'largest at ' : 'at ', element('b', {}, moment.at)),
      element('i', {}, 'all ', element('b', {}, bytes(total(moment)))),
      ...CLASSES.map(([name, title], i) => element('i', {}, key(colors()[i], 'area'), title, ' ', element('b', {}, bytes(moment[name] ?? 0)))));
  };
  me.options = () => ({colors: colors(), ...AXES()});
  const graph = new Dygraph(plot, moments.map((m, i) => [i, ...CLASSES.map(([name]) => m[name] ?? 0)]), {
    labels: ['moment', ...CLASSES.map(([name]) => name)],
    legend: 'never', stackedGraph: true, stepPlot: true, fillAlpha: .55, strokeWidth: 1, highlightCircleSize: 0,
    interactionModel: {}, includeZero: true,
    labelsKMG2: true, axes: {x: {drawAxis: false, drawGrid: false}, y: {axisLabelFormatter: bytes, axisLabelWidth: 72}},
    highlightCallback: (event, x) => me.read(x),
    unhighlightCallback: () => me.read(null),
    ...me.options(),
  });
  readByTouch(plot, graph, at => me.read(at));
  me.graph = graph;
  stacked.push(me);
  me.read(null);
}
const stacked = [];

// ---- Words and tables

const table = (head, body) => element('div', {className: 'scroll'}, element('table', {},
  element('thead', {}, element('tr', {}, ...head.map(text => element('th', {}, text)))),
  element('tbody', {}, ...body.map(([name, ...cells]) =>
    element('tr', {}, element('th', {}, name), ...cells.map(text => element('td', {}, text)))))));
const dot = index => {
  const mark = element('span', {className: 'dot'});
  mark.style.background = colorOf(index);
  return mark;
};

function writeHeader() {
  const title = alone ? runs[0].name : `${runs.length} runs`;
  byId('title').textContent = title;
  document.title = `${title} · Tapehead report`;
  if (alone) return;
  byId('runs').replaceChildren(...runs.map((run, index) => {
    const button = element('button', {type: 'button', title: 'show or hide'}, dot(index), run.name);
    button.setAttribute('aria-pressed', !hidden.has(index));
    button.onclick = () => {
      hidden.has(index) ? hidden.delete(index) : hidden.add(index);
      writeHeader();
      refresh();
    };
    return button;
  }));
}

function writeSummary() {
  const lowest = series => series ? format(Math.min(...series.y)) : '–';
  const end = series => series ? format(last(series.y)) : '–';
  const columns = [
    ['steps', run => run.totals.steps.toLocaleString('en')],
    ['training loss', run => end(run.series.smoothed_loss ?? run.series.loss)],
    ['held-out loss', run => end(run.series.held_out_loss)],
    ['lowest', run => lowest(run.series.held_out_loss)],
    ['bits per byte', run => end(run.series.bits_per_byte)],
    [counted('s'), run => compact(run.totals.tokens)],
    [`${counted('s')}/s`, run => run.totals.seconds > 0 ? format(run.totals.tokens / run.totals.seconds) : '–'],
    ['time in steps', run => duration(run.totals.seconds)],
  ];
  if (runs.some(run => run.totals.skipped)) columns.splice(1, 0, ['skipped', run => run.totals.skipped.toLocaleString('en')]);
  byId('summary').replaceChildren(table(['run', ...columns.map(([name]) => name)],
    runs.map(run => [run.name, ...columns.map(([, of]) => of(run))])));
}

function writeSamples() {
  const groups = new Map();
  runs.forEach((run, index) => run.samples.forEach(sample => {
    const id = `${index} ${sample.prompt}`;
    if (!groups.has(id)) groups.set(id, {run, prompt: String(sample.prompt ?? ''), list: []});
    groups.get(id).list.push(sample);
  }));
  const one = (group, sample) => element('div', {className: 'sample'},
    element('h3', {}, `step ${Number(sample.step).toLocaleString('en')}`),
    element('pre', {}, element('b', {}, group.prompt), String(sample.text ?? '')));
  byId('samples').replaceChildren(...[...groups.values()].map(group => {
    const newest = group.list.length - 1, place = element('div');
    const slider = element('input', {type: 'range', min: 0, max: newest, value: newest, ariaLabel: 'which evaluation'});
    const show = () => place.replaceChildren(one(group, group.list[slider.value]));
    slider.oninput = show;
    show();
    return element('section', {className: 'card'},
      element('h2', {}, 'What it writes', alone ? '' : `, ${group.run.name}`, ' ', element('small', {}, 'move through training')),
      ...(newest ? [element('div', {className: 'row'}, slider)] : []), place,
      ...(newest ? [element('details', {}, element('summary', {}, `all ${newest + 1}, the newest first`),
        ...group.list.toReversed().map(sample => one(group, sample)))] : []));
  }));
}

function writeSettings() {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.settings)))];
  if (!names.length) return;
  const text = (run, name) => name in run.settings ? String(run.settings[name]) : '–';
  const differs = name => new Set(runs.map(run => text(run, name))).size > 1;
  const rows = list => list.map(name => [name, ...runs.map(run => text(run, name))]);
  const head = ['setting', ...runs.map(run => run.name)];
  const different = names.filter(differs);
  const parts = alone ? [] : [element('h2', {}, 'Settings that differ'),
    different.length ? table(head, rows(different)) : element('p', {}, 'None: the runs are set alike.')];
  byId('settings').replaceChildren(...parts,
    element('details', {open: false}, element('summary', {}, 'all settings'), table(head, rows(names))));
}

function refresh() {
  for (const me of [...drawn, ...stacked]) {
    me.graph.updateOptions(me.options());
    me.read(null);
  }
}

writeHeader();
writeSummary();
CHARTS.forEach(drawChart);
runs.forEach(drawMemory);
writeSamples();
writeSettings();
byId('log').onchange = refresh;
byId('unzoom').onclick = () => zoomAll(null);
byId('hint').textContent = matchMedia('(hover: hover)').matches ? 'drag over a curve to zoom, double-click to go back' : 'touch a curve to read it';
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { writeHeader(); refresh(); });
