/** Numbers and words as a reader wants them. */

const MINUS = "\u2212";
const NONE = "\u2013";

export function number(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return minus(value.toExponential(2));
  if (size >= 1000) return minus(Math.round(value).toLocaleString("en"));
  return minus(value.toFixed(size >= 100 ? 1 : digits));
}

export function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

/** With all the digits that there are. */
export function exact(value) {
  return value === null || value === undefined ? "not known" : minus(String(value));
}

export function whole(value) {
  return value === null || value === undefined ? NONE : minus(value.toLocaleString("en"));
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function words(outcome) {
  return visible(outcome.replaceAll("_", " "));
}

export function count(value, one, many = `${one}s`) {
  return `${whole(value)} ${value === 1 ? one : many}`;
}

function minus(text) {
  return text.replace("-", MINUS);
}

/** Controls, which a terminal obeys, and marks of direction, which reorder what is around them. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Returns a text in which every letter can be seen; line ends and tabs stay. */
export function visible(text) {
  return text.replace(UNSEEN, (letter) => {
    const code = letter.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

/** Two-sided 97.5 % quantiles of Student's t, for 1 to 30 degrees of freedom. */
const STUDENT = [
  12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145,
  2.131, 2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048,
  2.045, 2.042,
];

export function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

/** Returns the least and the largest value; a run may have more than one call can be given. */
export function endsOf(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

/** Returns the standard deviation of a sample; null for fewer than two values. */
export function spread(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

/** Returns mean and half the width of a 95 % interval; null for fewer than two values. */
export function interval(values) {
  const error = spread(values);
  if (error === null) return { mean: mean(values), half: null };
  return { mean: mean(values), half: (error / Math.sqrt(values.length)) * (STUDENT[values.length - 2] ?? 1.96) };
}
