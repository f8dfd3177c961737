// A query against the texts: the ranking of the embeddings, and that of a reranker beside it.
import { useState } from "preact/hooks";
import { dot, normalized } from "../math/vectors";
import { explain } from "../server/client";
import { connection, modelsFor } from "../server/models";
import { shortened } from "../ui/format";
import { chosenOf, Field, ModelSelect, Problem } from "../ui/parts";
import { useStore } from "../ui/store";
import { type Embedded, embed, type Ranked, rerank } from "./embed";

/** Documents that are shown, and those that the reranker reads. */
const SHOWN = 10;
const CANDIDATES = 50;

interface Rankings {
    before: Ranked[];
    after?: Ranked[];
    /** Milliseconds of each step. */
    embedding: number;
    reranking?: number;
}

export function Search({ embedded }: { embedded: Embedded }) {
    const { models } = useStore(connection);
    const rerankers = modelsFor(models, "rerank", "tokens");
    const [chosen, setChosen] = useState("");
    const [query, setQuery] = useState("");
    const [rankings, setRankings] = useState<Rankings>();
    const [busy, setBusy] = useState(false);
    const [problem, setProblem] = useState<string>();
    const reranker = chosenOf(rerankers, chosen);
    const { texts } = embedded;

    const run = async () => {
        setBusy(true);
        setProblem(undefined);
        setRankings(undefined);
        try {
            const found = await search(embedded, query);
            setRankings(found);
            if (reranker) setRankings(await reranked(found, embedded, query, reranker));
        } catch (error) {
            setProblem(explain(error));
        } finally {
            setBusy(false);
        }
    };
    return (
        <>
            <form
                class="bar"
                onSubmit={(event) => {
                    event.preventDefault();
                    void run();
                }}
            >
                <Field label="Query">
                    <input type="search" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
                </Field>
                {rerankers.length > 0 && <ModelSelect label="Reranker" models={rerankers} value={reranker} onChange={setChosen} />}
                <button type="submit" disabled={!query.trim() || busy}>
                    Search
                </button>
            </form>
            {rerankers.length === 0 && <p class="note">No model of this server reranks, so that only the ranking of the embeddings is shown.</p>}
            <Problem message={problem} />
            {rankings && (
                <div class="rankings">
                    <Ranking title="By embeddings" note={`cosine, ${rankings.embedding.toFixed(0)} ms`} ranked={rankings.before} texts={texts.map(({ text }) => text)} />
                    {rankings.after && (
                        <Ranking
                            title={`By ${reranker}`}
                            note={`${rankings.after.length} documents, ${rankings.reranking?.toFixed(0)} ms`}
                            ranked={rankings.after}
                            before={rankings.before}
                            texts={texts.map(({ text }) => text)}
                        />
                    )}
                </div>
            )}
        </>
    );
}

/** Ranks the texts by the cosine of their vectors with that of the query. */
async function search({ model, vectors }: Embedded, query: string): Promise<Rankings> {
    const started = performance.now();
    const [vector] = await embed({ model, texts: [query], inputType: "search_query", signal: new AbortController().signal });
    const embedding = performance.now() - started;
    const unit = normalized(vector as Float32Array);
    const before = vectors.map((one, index) => ({ index, score: dot(unit, normalized(one)) }));
    return { before: before.sort((a, b) => b.score - a.score), embedding };
}

/** Adds the ranking of a reranker over the best documents. */
async function reranked(found: Rankings, { texts }: Embedded, query: string, model: string): Promise<Rankings> {
    const candidates = found.before.slice(0, CANDIDATES).map(({ index }) => index);
    const started = performance.now();
    const documents = candidates.map((at) => texts[at]?.text ?? "");
    const results = await rerank(model, query, documents, new AbortController().signal);
    const after = results.map(({ index, score }) => ({ index: candidates[index] ?? 0, score }));
    return { ...found, after, reranking: performance.now() - started };
}

interface RankingProps {
    title: string;
    note: string;
    ranked: Ranked[];
    before?: Ranked[];
    texts: string[];
}

function Ranking({ title, note, ranked, before, texts }: RankingProps) {
    const moved = (index: number, rank: number) => {
        const earlier = before?.findIndex((one) => one.index === index) ?? rank;
        const by = earlier - rank;
        if (by === 0) return <span class="move">stays</span>;
        return <span class={`move ${by > 0 ? "good" : "bad"}`}>{by > 0 ? `up ${by}` : `down ${-by}`}</span>;
    };
    return (
        <section aria-label={title}>
            <h2>{title}</h2>
            <p class="note">{note}</p>
            <ol>
                {ranked.slice(0, SHOWN).map(({ index, score }, rank) => (
                    <li>
                        <span class="score">{score.toFixed(3)}</span> {before && moved(index, rank)} {shortened(texts[index] ?? "", 160)}
                    </li>
                ))}
            </ol>
        </section>
    );
}
