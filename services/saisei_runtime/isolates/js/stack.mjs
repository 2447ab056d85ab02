/**
 * Room on the stack for the functions that tenants call.
 *
 * A tenant that has recursed to the limit gets its RangeError before a function of the host's has done anything: one that ran out of
 * stack half way would leave a torn frame, a call that nobody answers, or a hook of Node's that ends the thread (W-051).
 */

import { ReflectApply } from "./intrinsics.mjs";

const nothing = () => {};
// Arguments of a call lie on the stack, and the engine asks for room for all of them first; each takes 8 bytes and about 1 ns. The
// compilation of a function, which happens when it is called for the first time and now and then again, wants 40 KiB by itself.
const plain = new Array(7_168).fill(0);
const wide = new Array(12_288).fill(0);

/** @throws {RangeError} unless 56 KiB of stack are left: enough for checks, a few calls and a frame */
export const needStack = () => ReflectApply(nothing, undefined, plain);

/** @throws {RangeError} unless 96 KiB of stack are left: for what formats values, links modules, or calls large parts of Node */
export const needMuchStack = () => ReflectApply(nothing, undefined, wide);
