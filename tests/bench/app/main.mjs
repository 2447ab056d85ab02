// The Worker of the benchmarks: the smallest workflows that still do what each workload is about.
const HUNDRED_BYTES = "x".repeat(86);

export class OneStep {
  async run(event, step) {
    return await step.do("only", async () => ({ value: HUNDRED_BYTES }));
  }
}

export class TenSteps {
  async run(event, step) {
    let last;
    for (let index = 0; index < 10; index += 1) {
      last = await step.do(`step ${index}`, async () => ({ value: HUNDRED_BYTES }));
    }
    return last;
  }
}

export class Sleeper {
  async run(event, step) {
    await step.sleep("nap", event.params.seconds);
    return { slept: event.params.seconds };
  }
}

export class Waiter {
  async run(event, step) {
    return await step.waitForEvent("go", { type: "go", timeoutSeconds: 3600 });
  }
}

export class ManySteps {
  async run(event, step) {
    for (let index = 0; index < event.params.steps; index += 1) {
      await step.do(`step ${index}`, async () => ({ index }));
    }
    await step.sleep("nap", 1);
    return { steps: event.params.steps };
  }
}

/** Steps that take `pause` milliseconds each; with `wait`, once it is told to go. */
export class PacedSteps {
  async run(event, step) {
    if (event.params.wait) {
      await step.waitForEvent("go", { type: "go", timeoutSeconds: 3600 });
    }
    for (let index = 0; index < event.params.steps; index += 1) {
      await step.do(`step ${index}`, async () => {
        await new Promise((resolve) => setTimeout(resolve, event.params.pause));
        return { index };
      });
    }
  }
}

export default {
  async fetch() {
    return new Response("hello");
  },
};
