//! The index: an SQLite file with the chunks, their vectors (sqlite-vec) and their words (FTS5).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Once;

use rusqlite::{Connection, OptionalExtension, params};

use crate::chunks::Chunk;

/// Candidates of each of the two searches.
const CANDIDATES: u32 = 30;
/// Constant of reciprocal rank fusion. 60 is the value of the paper.
const FUSION: f64 = 60.0;

/// The index.
pub struct Store {
    database: Connection,
}

/// A chunk that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its file.
    pub path: String,
    /// The chunk.
    pub chunk: Chunk,
}

impl Store {
    /// Opens or creates the index. Vectors of two numerics classes are not comparable: an index of another class is
    /// emptied.
    pub fn open(file: &Path, class: &str, dimensions: usize) -> rusqlite::Result<Store> {
        register_vector_search();
        let database = Connection::open(file)?;
        database.execute_batch("create table if not exists meta (class text not null)")?;
        let known: Option<String> =
            database.query_row("select class from meta", [], |row| row.get(0)).optional()?;
        if known.as_deref() != Some(class) {
            database.execute_batch(&format!(
                "begin;
                drop table if exists files;
                drop table if exists chunks;
                drop table if exists vectors;
                drop table if exists words;
                create table files (path text primary key, hash text not null);
                create table chunks (id integer primary key, path text not null, line integer not null,
                    heading text not null, text text not null);
                create index chunks_of_a_file on chunks (path);
                create virtual table vectors using vec0 (embedding float[{dimensions}] distance_metric=cosine);
                create virtual table words using fts5 (heading, text, tokenize = 'porter unicode61');
                delete from meta;
                commit;"
            ))?;
            database.execute("insert into meta (class) values (?1)", [class])?;
        }
        Ok(Store { database })
    }

    /// The hash of each indexed file.
    pub fn hashes(&self) -> rusqlite::Result<HashMap<String, String>> {
        let mut query = self.database.prepare("select path, hash from files")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }

    /// Number of chunks.
    pub fn len(&self) -> rusqlite::Result<u32> {
        self.database.query_row("select count(*) from chunks", [], |row| row.get(0))
    }

    /// Replaces the chunks of a file, or removes it if `hash` is none. A file is changed as a whole or not at all.
    pub fn replace(
        &mut self,
        path: &str,
        hash: Option<&str>,
        chunks: impl Iterator<Item = (Chunk, Vec<f32>)>,
    ) -> rusqlite::Result<()> {
        let change = self.database.transaction()?;
        for table in ["vectors", "words"] {
            let of_file = "rowid in (select id from chunks where path = ?1)";
            change.execute(&format!("delete from {table} where {of_file}"), [path])?;
        }
        change.execute("delete from chunks where path = ?1", [path])?;
        change.execute("delete from files where path = ?1", [path])?;
        if let Some(hash) = hash {
            change.execute("insert into files (path, hash) values (?1, ?2)", [path, hash])?;
        }
        for (Chunk { heading, line, text }, vector) in chunks {
            change.execute(
                "insert into chunks (path, line, heading, text) values (?1, ?2, ?3, ?4)",
                params![path, line, heading, text],
            )?;
            let id = change.last_insert_rowid();
            change.execute(
                "insert into vectors (rowid, embedding) values (?1, ?2)",
                params![id, bytes(&vector)],
            )?;
            change.execute(
                "insert into words (rowid, heading, text) values (?1, ?2, ?3)",
                params![id, heading, text],
            )?;
        }
        change.commit()
    }

    /// Hybrid search: the nearest vectors and the best matches of words, merged by their ranks.
    pub fn search(&self, question: &str, vector: &[f32]) -> rusqlite::Result<Vec<Found>> {
        let nearest = self.ids(
            "select rowid from vectors where embedding match ?1 and k = ?2 order by distance",
            bytes(vector),
        )?;
        let words = any_word(question);
        let matching = if words.is_empty() {
            Vec::new()
        } else {
            self.ids(
                "select rowid from words where words match ?1 order by bm25(words, 2, 1) limit ?2",
                words,
            )?
        };
        let ids = fuse(&[nearest, matching]);
        ids.into_iter().map(|id| self.chunk(id)).collect()
    }

    fn ids(&self, query: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<Vec<i64>> {
        let mut query = self.database.prepare(query)?;
        query.query_map(params![value, CANDIDATES], |row| row.get(0))?.collect()
    }

    fn chunk(&self, id: i64) -> rusqlite::Result<Found> {
        let query = "select path, line, heading, text from chunks where id = ?1";
        self.database.query_row(query, [id], |row| {
            let chunk = Chunk { line: row.get(1)?, heading: row.get(2)?, text: row.get(3)? };
            Ok(Found { path: row.get(0)?, chunk })
        })
    }
}

/// Reciprocal rank fusion: ids in descending order of the sum of `1 / (60 + rank)` over the lists.
fn fuse(lists: &[Vec<i64>]) -> Vec<i64> {
    let mut scores: Vec<(i64, f64)> = Vec::new();
    for (rank, &id) in lists.iter().flat_map(|list| list.iter().enumerate()) {
        let score = 1.0 / (FUSION + 1.0 + rank as f64);
        match scores.iter_mut().find(|(known, _)| *known == id) {
            Some((_, sum)) => *sum += score,
            None => scores.push((id, score)),
        }
    }
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    scores.into_iter().map(|(id, _)| id).collect()
}

/// A query of FTS5 that matches any word of the question.
fn any_word(question: &str) -> String {
    let words = question.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" OR ")
}

/// A vector as sqlite-vec reads it.
fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Adds sqlite-vec to every connection of this process.
#[expect(unsafe_code, reason = "an extension of SQLite is a C function")]
fn register_vector_search() {
    static ONCE: Once = Once::new();
    type Extension = rusqlite::auto_extension::RawAutoExtension;
    ONCE.call_once(|| {
        // SAFETY: `sqlite3_vec_init` is the entry point of an extension and has its signature; its crate declares it
        // without arguments. It opens and closes no database.
        let registered = unsafe {
            let init = std::mem::transmute::<unsafe extern "C" fn(), Extension>(sqlite_vec::sqlite3_vec_init);
            rusqlite::auto_extension::register_auto_extension(init)
        };
        registered.expect("SQLite takes an extension");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(heading: &str, text: &str) -> Chunk {
        Chunk { heading: heading.to_owned(), line: 1, text: text.to_owned() }
    }

    fn paths(found: &[Found]) -> Vec<&str> {
        found.iter().map(|found| found.path.as_str()).collect()
    }

    #[test]
    fn vectors_and_words_are_searched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("index");
        let mut store = Store::open(&file, "a-half", 2).unwrap();
        let one = |text: &str, vector: [f32; 2]| [(chunk("H", text), vector.to_vec())].into_iter();
        store.replace("sort.md", Some("1"), one("list.sort() orders it", [1.0, 0.0])).unwrap();
        store.replace("port.md", Some("2"), one("the harbour at night", [0.0, 1.0])).unwrap();
        assert_eq!(paths(&store.search("nothing of it", &[0.9, 0.1]).unwrap())[0], "sort.md", "by vector");
        assert_eq!(paths(&store.search("harbours?", &[1.0, 1.0]).unwrap())[0], "port.md", "by word, stemmed");
        assert_eq!(store.search("!?", &[1.0, 0.0]).unwrap().len(), 2, "a question without words");

        store.replace("sort.md", Some("3"), one("sorted() makes a new list", [1.0, 0.0])).unwrap();
        store.replace("port.md", None, std::iter::empty()).unwrap();
        let found = store.search("harbour", &[0.0, 1.0]).unwrap();
        assert_eq!((paths(&found), store.len().unwrap()), (vec!["sort.md"], 1), "what was removed is gone");
        assert_eq!(found[0].chunk, chunk("H", "sorted() makes a new list"));
        drop(store);

        let store = Store::open(&file, "a-half", 2).unwrap();
        assert_eq!(store.hashes().unwrap(), HashMap::from([("sort.md".to_owned(), "3".to_owned())]));
        drop(store);
        let store = Store::open(&file, "b-half", 3).unwrap();
        assert!(store.hashes().unwrap().is_empty(), "vectors of another class are not kept");
    }

    #[test]
    fn ranks_are_fused() {
        assert_eq!(fuse(&[vec![1, 2, 3], vec![3, 4]]), [3, 1, 2, 4]);
        assert_eq!(fuse(&[vec![], vec![]]), [] as [i64; 0]);
    }

    #[test]
    fn a_question_is_a_query_of_its_words() {
        assert_eq!(any_word("What's `--max-length`?"), r#""What" OR "s" OR "max" OR "length""#);
        assert_eq!(any_word("\"); drop"), r#""drop""#);
    }
}
