// Passes requests on to the app `back`, and asks it from a step.
export class Asking {
  constructor(env) {
    this.env = env;
  }
  async run(event, step) {
    return step.do("ask", async () => ({ tone: await (await this.env.BACK.fetch("https://back/tone")).text() }));
  }
}

const failed = (error) => Response.json({ name: error.name, isError: error instanceof Error }, { status: 599 });

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/keys") return Response.json(Object.keys(env));
    if (pathname === "/loop") return env.SELF.fetch(request).catch(failed);
    return env.BACK.fetch(request).catch(failed);
  },
};
