// The OpenAPI description of the server, as a list of routes.
import { example, type Schema } from "./example.js";

export interface Operation {
    tags?: string[];
    summary?: string;
    description?: string;
    requestBody?: { content?: Record<string, { schema?: Schema; example?: unknown }> };
}

export interface Description {
    info: { description?: string; version: string };
    paths: Record<string, Record<string, Operation>>;
    components?: { schemas?: Record<string, Schema> };
}

export interface Route {
    method: string;
    path: string;
    summary: string;
    details: string;
    /** Names in the path that a request fills in. */
    parameters: string[];
    /** An example body, if the route takes one. */
    body: string | undefined;
}

/** The routes of a description, by tag. */
export function routesByTag(description: Description): Map<string, Route[]> {
    const groups = new Map<string, Route[]>();
    for (const [path, methods] of Object.entries(description.paths)) {
        for (const [method, operation] of Object.entries(methods)) {
            const tag = operation.tags?.[0] ?? "other";
            groups.set(tag, [...(groups.get(tag) ?? []), routeOf(method, path, operation, description)]);
        }
    }
    return groups;
}

function routeOf(method: string, path: string, operation: Operation, { components }: Description): Route {
    const media = operation.requestBody?.content?.["application/json"];
    const body = media?.schema && (media.example ?? example(media.schema, components?.schemas ?? {}));
    return {
        method,
        path,
        summary: operation.summary ?? "",
        details: operation.description ?? "",
        parameters: [...path.matchAll(/\{(\w+)\}/g)].map(([, name = ""]) => name),
        body: body === undefined ? undefined : JSON.stringify(body, null, 2),
    };
}

/** A request as a command. The key is not shown. */
export function curl(route: Route, to: string, headers: Record<string, string>, body: string | undefined): string {
    const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
    const needsMethod = route.method === "delete" || (route.method === "post" && body === undefined);
    const words = ["curl", ...(needsMethod ? ["-X", route.method.toUpperCase()] : []), location.origin + to];
    for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
    if (body !== undefined) words.push("-H", quoted("content-type: application/json"), "-d", quoted(compact(body)));
    return words.join(" ");
}

function compact(body: string): string {
    try {
        return JSON.stringify(JSON.parse(body));
    } catch {
        return body;
    }
}

/** JSON with indentation, in which arrays of numbers stay on one line. Other text is left alone. */
export function pretty(text: string): string {
    try {
        return JSON.stringify(JSON.parse(text), null, 1).replace(/\n\s+(-?[\d.e+-]+,?)(?=\n)/g, " $1");
    } catch {
        return text;
    }
}
