// Embeddings: similarities, a map, and search with reranking.
import { useRef, useState } from "preact/hooks";
import { explain, isAbort } from "../server/client";
import { connection, modelsFor } from "../server/models";
import { useStored } from "../ui/hooks";
import { chosenOf, Field, ModelSelect, NoModel, Problem, Tabs } from "../ui/parts";
import { useStore } from "../ui/store";
import { type Embedded, embed } from "./embed";
import { HeatMap } from "./heat-map";
import { MapView } from "./map-view";
import { Search } from "./search";
import { EXAMPLE, MOST_TEXTS, parseTexts } from "./texts";

type View = "similarity" | "map" | "search";

export function EmbeddingsPage(_: { active: boolean }) {
    const { models } = useStore(connection);
    const usable = modelsFor(models, "embed");
    const [chosen, setChosen] = useState("");
    const [pasted, setPasted] = useStored("sconce-texts", "");
    const [embedded, setEmbedded] = useState<Embedded>();
    const [view, setView] = useState<View>("similarity");
    const [done, setDone] = useState<number>();
    const [problem, setProblem] = useState<string>();
    const running = useRef<AbortController | null>(null);
    const model = chosenOf(usable, chosen);
    const texts = parseTexts(pasted);
    const tooMany = texts.length > MOST_TEXTS;

    const run = async () => {
        const controller = new AbortController();
        running.current = controller;
        setProblem(undefined);
        setDone(0);
        const started = performance.now();
        try {
            const vectors = await embed({
                model,
                texts: texts.map(({ text }) => text),
                inputType: "search_document",
                signal: controller.signal,
                progress: setDone,
            });
            setEmbedded({ model, texts, vectors, seconds: (performance.now() - started) / 1000 });
        } catch (error) {
            if (!isAbort(error)) setProblem(explain(error));
        } finally {
            setDone(undefined);
        }
    };

    if (usable.length === 0) {
        return <NoModel task="embeds" example="sentence-transformers/all-MiniLM-L6-v2" known={models !== undefined} />;
    }
    return (
        <>
            <form
                class="card"
                onSubmit={(event) => {
                    event.preventDefault();
                    void run();
                }}
            >
                <ModelSelect label="Model" models={usable} value={model} onChange={setChosen} />
                <Field label="Texts, one per line" hint="A label and a tab before a text color it on the map.">
                    <textarea
                        rows={8}
                        value={pasted}
                        spellcheck={false}
                        onInput={(event) => setPasted(event.currentTarget.value)}
                    />
                </Field>
                <div class="bar">
                    <button type="submit" disabled={texts.length === 0 || tooMany || done !== undefined}>
                        Embed {texts.length} {texts.length === 1 ? "text" : "texts"}
                    </button>
                    {done !== undefined && (
                        <>
                            <progress aria-label="Embedded texts" value={done} max={texts.length} />
                            <button type="button" class="quiet" onClick={() => running.current?.abort()}>
                                Cancel
                            </button>
                        </>
                    )}
                    <button type="button" class="quiet" onClick={() => setPasted(EXAMPLE)}>
                        Use example texts
                    </button>
                </div>
                {tooMany && <Problem message={`at most ${MOST_TEXTS} texts: ${texts.length}`} />}
                <Problem message={problem} />
            </form>
            {embedded && <Views embedded={embedded} view={view} onView={setView} />}
        </>
    );
}

const VIEWS: [View, string][] = [
    ["similarity", "Similarity"],
    ["map", "Map"],
    ["search", "Search"],
];

function Views({ embedded, view, onView }: { embedded: Embedded; view: View; onView: (view: View) => void }) {
    const { model, texts, vectors, seconds } = embedded;
    const rate = (texts.length / seconds).toFixed(0);
    return (
        <>
            <p class="summary" role="status">
                {texts.length} texts by <code>{model}</code>: {vectors[0]?.length ?? 0} dimensions, {seconds.toFixed(2)} s, {rate} texts/s
            </p>
            <Tabs label="Views" tabs={VIEWS} value={view} onChange={onView} />
            <div class="card" role="tabpanel" aria-label={VIEWS.find(([name]) => name === view)?.[1]}>
                {view === "similarity" && <HeatMap embedded={embedded} />}
                {view === "map" && <MapView embedded={embedded} />}
                {view === "search" && <Search embedded={embedded} />}
            </div>
        </>
    );
}
