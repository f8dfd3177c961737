// The models of the server, and whether it can be reached.
import { Store } from "../ui/store";
import { explain, json } from "./client";

export interface ListedModel {
    id: string;
    ready: boolean;
    task?: string;
    max_length?: number;
    width?: number;
}

export interface Connection {
    /** None until the first answer. */
    models?: ListedModel[];
    /** Why the last request failed. */
    problem?: string;
}

export const connection = new Store<Connection>({});

/** Asks the server for its models. */
export async function refreshModels(): Promise<void> {
    try {
        const { data } = await json<{ data: ListedModel[] }>("/v1/models");
        // Components render again only if something changed.
        if (JSON.stringify({ models: data }) !== JSON.stringify(connection.get())) connection.set({ models: data });
    } catch (error) {
        const { models } = connection.get();
        connection.set({ ...(models ? { models } : {}), problem: explain(error) });
    }
}

/** The models with one of these tasks. A model whose task is not known yet has none. */
export function modelsFor(models: ListedModel[] | undefined, ...tasks: string[]): ListedModel[] {
    return (models ?? []).filter((model) => model.task !== undefined && tasks.includes(model.task));
}
