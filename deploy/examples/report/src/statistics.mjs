/** Statistics over arrays of numbers. The sums run in WebAssembly: see wasm/make_wasm.py for the module's text. */
import moments from "../wasm/moments.wasm";

/** @typedef {{memory: WebAssembly.Memory, sum: (n: number) => number, squares: (n: number, mean: number) => number}} Moments */

/** Bytes in one page of wasm memory, and in one number. */
const PAGE = 65536;
const NUMBER = 8;

/** @returns {Moments} a fresh instance: memory is never shared between two calculations */
const instantiate = () => /** @type {Moments} */ (/** @type {unknown} */ (new WebAssembly.Instance(moments, {}).exports));

/** @param {number} value */
const rounded = (value) => Math.round(value * 1000) / 1000;

/**
 * @param {number[]} values at least two
 * @returns {{n: number, mean: number, deviation: number, least: number, most: number}} `deviation` is of the sample
 */
export function describe(values) {
  const { memory, sum, squares } = instantiate();
  const missing = values.length * NUMBER - memory.buffer.byteLength;
  if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
  new Float64Array(memory.buffer, 0, values.length).set(values);
  const mean = sum(values.length) / values.length;
  return {
    n: values.length,
    mean: rounded(mean),
    deviation: rounded(Math.sqrt(squares(values.length, mean) / (values.length - 1))),
    least: Math.min(...values),
    most: Math.max(...values),
  };
}

/**
 * Pearson's coefficient of two series of equal length.
 *
 * @param {number[]} left
 * @param {number[]} right
 */
export function correlation(left, right) {
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [a, b] = [mean(left), mean(right)];
  let [both, first, second] = [0, 0, 0];
  left.forEach((value, at) => {
    both += (value - a) * (right[at] - b);
    first += (value - a) ** 2;
    second += (right[at] - b) ** 2;
  });
  return rounded(both / Math.sqrt(first * second));
}
