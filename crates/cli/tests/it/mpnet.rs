//! A real BERT-base-sized model compared with sentence-transformers by `sconce verify`.

use std::path::Path;

use crate::harness::Sandbox;

#[test]
fn all_mpnet_base_v2_matches_sentence_transformers() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = workspace.join("target/parts/mpnet");
    assert!(folder.is_dir(), "no all-mpnet-base-v2 in `target/parts`: fetch it with `scripts/parts mpnet`");
    let folder = folder.to_str().expect("a path that is text");
    let typed = ["verify", folder, "--dtype", "f32", "--reference", "mpnet/reference.npz", "--json"];
    let answer = Sandbox::unproved().run(&typed).succeeds().json();
    assert_eq!(answer["texts"], 24);
    let placements = answer["placements"].as_array().expect("a list");
    assert_eq!(placements.len(), 2, "{answer}");
    for one in placements {
        let (difference, cosine) = (one["max_difference"].as_f64(), one["least_cosine"].as_f64());
        println!("{}: max |d| {difference:?}, least cosine {cosine:?}", one["placement"]);
        assert_eq!(one["within_band"], true, "{one}");
        assert!(difference.expect("a number") < 1e-5 && cosine.expect("a number") > 0.99999, "{one}");
    }
}
