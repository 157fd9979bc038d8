// Numbers as people read them; days as the viewer's own locale writes them, times of 24 hours.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clocks = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const time = new Intl.DateTimeFormat(undefined, { ...clocks, second: "2-digit" });
const minute = new Intl.DateTimeFormat(undefined, clocks);
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

export const NONE = "–";
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? whole.format(value) : NONE);
export const rows = (n) => `${count(n)} ${n === 1 ? "row" : "rows"}`;
export const rate = (value) => (!isNumber(value) ? NONE : value < 10 ? one.format(value) : whole.format(value));

// 0.051 -> "5.1 %"; a share too small for the digit is not called nothing.
export function share(value) {
  if (!isNumber(value)) return NONE;
  return value > 0 && value < 0.0005 ? "< 0.1\u00a0%" : `${one.format(100 * value)}\u00a0%`;
}

export function decimal(value, digits = 3) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-4)) return value.toExponential(digits - 1).replace("-", "−");
  const places = size === 0 ? digits - 1 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(places, digits)).replace("-", "−");
}

export const signed = (value) =>
  isNumber(value) ? `${value <= -0.005 ? "−" : "+"}${Math.abs(value).toFixed(2)}` : NONE;

export const clock = (seconds) => time.format(1000 * seconds);
export const hourAndMinute = (seconds) => minute.format(1000 * seconds);

// The time alone when it is today's.
export function moment(seconds, now) {
  const [then, today] = [seconds, now].map((at) => day.format(1000 * at));
  return then === today ? minute.format(1000 * seconds) : `${then}, ${minute.format(1000 * seconds)}`;
}
