//! A search that was written with the crate `fastembed`, ported to sconce. docs/guides/from-fastembed.md shows both.
//!
//! ```sh
//! cargo run --release --bin from-fastembed -- target/parts/minilm-trio
//! ```

use std::env;

use sconce::{Band, Model, cosine, ranking};

fn main() -> Result<(), sconce::Error> {
    sconce::init();
    let name = env::args().nth(1).unwrap_or("sentence-transformers/all-MiniLM-L6-v2".to_owned());
    let model = Model::builder(&name).band(Band::Exact).open()?;

    let documents = ["list.sort() orders it in place", "the harbour at night", "a sconce holds a candle"];
    let embeddings = model.embed(&documents)?;
    println!("{} vectors of {} dimensions", embeddings.len(), embeddings[0].len());

    let query = model.embed(&["how do I sort a list?"])?;
    let scores: Vec<f32> = embeddings.iter().map(|document| cosine(&query[0], document)).collect();
    for found in ranking(&scores, Some(2)) {
        println!("{:.4}  {}", found.score, documents[found.index]);
    }
    Ok(())
}
