// Code that does not stop by itself, next to code that goes on.
export class Loops {
  async run(event, step) {
    await step.do("spin", () => {
      console.log(`never ends: ${event.instanceId}`);
      for (;;) {
        /* never ends */
      }
    });
  }
}

export class Backtracks {
  async run(event, step) {
    await step.do("match", () => {
      console.log(`never ends: ${event.instanceId}`);
      return { matched: /^(a+)+$/.test(`${"a".repeat(40)}!`) };
    });
  }
}

export class Hangs {
  async run(event, step) {
    await step.do("wait for ever", () => {
      console.log(`never ends: ${event.instanceId}`);
      return new Promise(() => {});
    });
  }
}

export class GoesOn {
  async run(event, step) {
    let total = 0;
    for (let index = 0; index < event.params.steps; index += 1) {
      const part = await step.do(`part ${index}`, async () => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        return { value: index };
      });
      total += part.value;
    }
    return { total };
  }
}

export default {};
