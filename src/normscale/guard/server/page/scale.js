// From numbers to places on a chart.

export const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from)) * (end - start);

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// A bar as a piece of a path.
export function bar(left, right, from, to, gap = 0.5) {
  const [l, r, f, t] = [left + gap, right - gap, from, to].map((at) => at.toFixed(1));
  return f === t ? "" : `M${l} ${f}V${t}H${r}V${f}Z`;
}

export const sum = (values) => values.reduce((total, value) => total + value, 0);

const ascending = (values) => values.toSorted((a, b) => a - b);

// The smallest value with at least that share of the values at or below it; undefined without any.
const quantile = (values, share) => ascending(values)[Math.max(0, Math.ceil(share * values.length) - 1)];

// 1, 2 or 5 times a power of ten: about `n` of them from low to high.
export function step(low, high, n) {
  const rough = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
}

// Multiples of a step from low to high, and their texts.
export function ticks(low, high, n) {
  const by = step(low, high, n);
  const places = Math.max(0, -Math.floor(Math.log10(by) + 1e-9));
  const first = Math.ceil(low / by - 1e-9);
  return Array.from({ length: Math.floor(high / by + 1e-9) - first + 1 }, (_, k) => {
    const value = (first + k) * by;
    const text = Math.abs(value) >= 1e6 ? value.toExponential(1) : value.toFixed(places);
    return [value, text.replace("-", "−")];
  });
}

// Scores beyond are not numbers of the formula, but the highest score, of rows far outside of training.
const HIGHEST = 1e30;

// A range on round numbers that shows the bulk of the values and all of `also`; far outliers do not squeeze the rest.
export function range(all, also) {
  const values = all.filter((value) => Math.abs(value) < HIGHEST);
  const [near, far] = [quantile(values, 0.01), quantile(values, 0.99)];
  const margin = 0.5 * (far - near);
  const bulk = values.filter((value) => !(value < near - margin || value > far + margin));
  let [low, high] = [Math.min(...bulk, ...also), Math.max(...bulk, ...also)];
  if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - 1, low + 1] : [0, 1];
  const by = step(low, high, 10);
  return [by * Math.floor(low / by), by * Math.ceil(high / by)];
}
