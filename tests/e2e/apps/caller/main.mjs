// A Worker that drives its own workflow through its Binding, so that tests see what an app developer sees.
export class Greeting {
  constructor(env) {
    this.env = env;
  }

  async run(event, step) {
    const greeting = await step.do("greet", () => ({ text: `${this.env.GREETING}, ${event.params.name}` }));
    const answer = await step.waitForEvent("answer", { type: "answer", timeoutSeconds: 600 });
    await step.sleep("a moment", 0);
    return { greeting: greeting.text, answer };
  }
}

async function errorOf(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return { name: error.name, isError: error instanceof Error };
  }
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const id = url.searchParams.get("id");
    const reports = env.GREETINGS;
    switch (url.pathname) {
      case "/create": {
        const instance = await reports.create({ id, params: { name: url.searchParams.get("name") } });
        return Response.json({ id: instance.id, keys: Object.keys(instance).sort() });
      }
      case "/status":
        return Response.json(await (await reports.get(id)).status());
      case "/send": {
        const payload = await request.json();
        await (await reports.get(id)).sendEvent({ type: "answer", payload });
        return Response.json({ sent: true });
      }
      case "/terminate":
        await (await reports.get(id)).terminate();
        return Response.json({ terminated: true });
      case "/events": {
        using subscription = await (await reports.get(id)).subscribe({ cursor: 0 });
        const types = [];
        for (;;) {
          const next = await subscription.next();
          if (next.done) break;
          types.push(next.value.type);
        }
        return Response.json({ types });
      }
      case "/refusals":
        return Response.json({
          exists: await errorOf(reports.create({ id })),
          unknown: await errorOf(reports.get("no such instance")),
          getter: await errorOf(reports.create({ params: { get secret() { return 1; } } })),
          bigint: await errorOf(reports.create({ params: { n: 1n } })),
          large: await errorOf(reports.create({ params: { text: "x".repeat(1048577) } })),
          key: await errorOf(reports.create({ idd: "x" })),
        });
      case "/echo":
        return new Response(request.body, { status: 201, headers: { "x-method": request.method } });
      case "/stream": {
        const count = Number(url.searchParams.get("chunks"));
        let sent = 0;
        const chunk = new Uint8Array(65536).fill(7);
        return new Response(
          new ReadableStream({
            pull(controller) {
              if (sent++ >= count) controller.close();
              else controller.enqueue(chunk);
            },
          }),
        );
      }
      case "/env":
        return Response.json({ keys: Object.keys(env).sort(), greeting: env.GREETING });
      case "/throw":
        throw new Error("the secret is 42");
      case "/wrong":
        return "not a Response";
      default:
        return new Response("not here", { status: 404 });
    }
  },
};
