/**
 * Room on the stack for the functions that tenants call.
 *
 * A tenant that has recursed to the limit gets its RangeError before a function of the host's has done anything: one that ran out of
 * stack half way would leave a torn frame, a call that nobody answers, or a hook of Node's that ends the thread (W-051).
 *
 * What asks is a function of WebAssembly whose frame is as large as the room. The engine compares a large frame with the limit before
 * it is entered, in 10 ns, and nothing of it is written: what fills it stands behind a condition that never holds. (A call with
 * thousands of arguments asked for the same room in 5 to 8 µs, at each step.)
 */

/** What one call of the import gives; a function may return 1,000 values at most. */
const AT_ONCE = 512;
const F64 = 0x7c;

/** LEB128. @returns {number[]} */
function number(/** @type {number} */ value) {
  return value < 128 ? [value] : [(value & 127) | 128, ...number(value >>> 7)];
}

const section = (/** @type {number} */ id, /** @type {number[]} */ content) => [id, ...number(content.length), ...content];

/**
 * Functions `(i32) → f64` whose frames have that many slots of 8 bytes: with anything but 0 they would call the import again and again,
 * and add up all that it gave. Each value is needed after the last call, so neither compiler of the engine can do without its slot.
 * @param {number[]} sizes
 */
function frames(sizes) {
  const bodies = sizes.map((slots) => {
    const calls = new Array(slots / AT_ONCE).fill([0x10, 0]).flat();
    const code = [0, 0x20, 0, 0x04, F64, ...calls, ...new Array(slots - 1).fill(0xa0), 0x05, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0b];
    return [...number(code.length), ...code];
  });
  const module = new WebAssembly.Module(
    new Uint8Array([
      ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
      ...section(1, [2, 0x60, 0, ...number(AT_ONCE), ...new Array(AT_ONCE).fill(F64), 0x60, 1, 0x7f, 1, F64]),
      ...section(2, [1, 1, 0x6d, 1, 0x66, 0, 0]),
      ...section(3, [sizes.length, ...sizes.map(() => 1)]),
      ...section(7, [sizes.length, ...sizes.flatMap((_, i) => [1, 0x61 + i, 0, i + 1])]),
      ...section(10, [sizes.length, ...bodies.flat()]),
    ]),
  );
  return /** @type {any} */ (new WebAssembly.Instance(module, { m: { f: () => [] } }).exports);
}

// The compilation of a function, which happens when it is called for the first time and now and then again, wants 40 KiB by itself.
const { a: some, b: much } = frames([7_168, 12_288]);
some(0);
much(0);

/** @throws {RangeError} unless 56 KiB of stack are left: enough for checks, a few calls and a frame */
export const needStack = () => {
  some(0);
};

/** @throws {RangeError} unless 96 KiB of stack are left: for what formats values, links modules, or calls large parts of Node */
export const needMuchStack = () => {
  much(0);
};
