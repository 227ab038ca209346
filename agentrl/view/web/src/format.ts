/** Numbers and words as a reader wants them. */

const MINUS = "\u2212";

export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return "\u2013";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return minus(value.toExponential(2));
  if (size >= 1000) return minus(Math.round(value).toLocaleString("en"));
  return minus(value.toFixed(size >= 100 ? 1 : digits));
}

export function signed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return "\u2013";
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

/** With all the digits that there are. */
export function exact(value: number | null | undefined): string {
  return value === null || value === undefined ? "not known" : minus(String(value));
}

export function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? "\u2013" : minus(value.toLocaleString("en"));
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "\u2013";
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function words(outcome: string): string {
  return outcome.replaceAll("_", " ");
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${whole(value)} ${value === 1 ? one : many}`;
}

function minus(text: string): string {
  return text.replace("-", MINUS);
}

/** Two-sided 97.5 % quantiles of Student's t, for 1 to 30 degrees of freedom. */
const STUDENT = [
  12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145,
  2.131, 2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048,
  2.045, 2.042,
];

/** Returns mean and half the width of a 95 % interval; null for fewer than two values. */
export function interval(values: number[]): { mean: number; half: number | null } {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length < 2) return { mean, half: null };
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const error = Math.sqrt(squares / (values.length - 1) / values.length);
  return { mean, half: error * (STUDENT[values.length - 2] ?? 1.96) };
}

export function spread(values: number[]): number | null {
  if (values.length < 2) return null;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return Math.sqrt(squares / (values.length - 1));
}
