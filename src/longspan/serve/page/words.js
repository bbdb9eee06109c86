// Numbers in words.

const whole = new Intl.NumberFormat("en");

export const number = (n) => whole.format(Math.round(n));

export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** How many times as much. */
export const times = (lift) => `${lift < 10 ? lift.toFixed(1) : number(lift)}×`;

/** How much of the text an answer's tokens could attend to. */
export const SAW = {
  whole: "The whole text was in view.",
  chosen: "Each head chose what it saw of the text.",
  recent: "Only the first and the last tokens were in view.",
};

export function bytes(n) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (n >= size) return `${(n / size).toFixed(n < 10 * size ? 1 : 0)} ${unit}`;
  return count(n, "byte");
}

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function percent(share) {
  return `${Math.round(100 * share)}%`;
}
