//! Tests of the text thread pool: round-robin order, pieces, limits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const ONE: TenantId = TenantId(1);
const TWO: TenantId = TenantId(2);

type Names = Arc<Mutex<Vec<u64>>>;

fn task(done: &Names, name: u64) -> Task {
    let done = Arc::clone(done);
    Box::new(move || done.lock().expect("no panic").push(name))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

#[test]
fn tenants_are_served_round_robin_and_short_requests_first() {
    let mut state = State::default();
    let done = Names::default();
    for _ in 0..3 {
        state.short.push(ONE, VecDeque::from([task(&done, 1)]));
    }
    state.short.push(TWO, VecDeque::from([task(&done, 2)]));
    let shared = Shared { state: Mutex::new(state), wake: Default::default() };
    shared.lock().closed = true;
    shared.lock().long.push(ONE, VecDeque::from([task(&done, 3)]));
    while let Some(task) = shared.next(false) {
        task();
    }
    assert_eq!(*done.lock().expect("no panic"), [1, 2, 1, 1]);
    shared.next(true).expect("the long one")();
    assert_eq!(*done.lock().expect("no panic"), [1, 2, 1, 1, 3]);
}

#[test]
fn requests_of_one_tenant_are_served_round_robin_piece_by_piece() {
    let (mut queue, done) = (RoundRobin::default(), Names::default());
    queue.push(ONE, (10..14).map(|name| task(&done, name)).collect());
    queue.push(ONE, VecDeque::from([task(&done, 20)]));
    queue.push(TWO, (30..32).map(|name| task(&done, name)).collect());
    while let Some(task) = queue.next() {
        task();
    }
    assert_eq!(*done.lock().expect("no panic"), [10, 30, 20, 31, 11, 12, 13]);
}

#[test]
fn pieces_end_at_their_bytes_and_at_their_texts_and_hold_every_text_once() {
    let ends = |bytes: &[usize]| {
        let pieces = pieces(bytes);
        let starts = std::iter::once(0).chain(pieces.iter().map(|piece| piece.end));
        assert!(pieces.iter().map(|piece| piece.start).eq(starts.take(pieces.len())));
        pieces.iter().map(|piece| piece.end).collect::<Vec<_>>()
    };
    assert_eq!(ends(&[]), [0]);
    assert_eq!(ends(&[5, 5]), [2]);
    assert_eq!(ends(&[PIECE_BYTES]), [1]);
    assert_eq!(ends(&[1, PIECE_BYTES * 9, 1, PIECE_BYTES - 1, 3]), [2, 4, 5]);
    assert_eq!(ends(&[0; PIECE_TEXTS + 1]), [PIECE_TEXTS, PIECE_TEXTS + 1]);
}

#[test]
fn parts_come_back_in_their_order_and_the_first_error_ends_the_request() {
    let pool = TextPool::start(3, 1 << 30).expect("threads");
    let bytes = vec![PIECE_BYTES; 40];
    runtime().block_on(async {
        let each = |range: Range<usize>| Ok::<_, usize>(range.start);
        let all = pool.run_pieces(ONE, &bytes, each, Ok).await.expect("capacity").expect("no panic");
        assert_eq!(all, Ok((0..40).collect::<Vec<_>>()));
        let each = |range: Range<usize>| {
            if range.start == 0 { Err("the first") } else { Ok(()) }
        };
        let refused = pool.run_pieces(ONE, &bytes, each, |_| Ok(())).await.expect("capacity");
        assert_eq!(refused, Some(Err("the first")));
        // The skipped pieces of a failed request do not block the next request.
        assert_eq!(pool.run(ONE, 1, || 7).await, Ok(Some(7)));
        assert_eq!(pool.run(ONE, 1, || -> usize { panic!("a piece") }).await, Ok(None));
    });
}

/// Polls once, so that a request is queued.
async fn queued<F: Future>(mut request: std::pin::Pin<&mut F>) {
    let poll = |context: &mut std::task::Context<'_>| {
        std::task::Poll::Ready(request.as_mut().poll(context).is_pending())
    };
    assert!(std::future::poll_fn(poll).await, "it waits");
}

#[test]
fn a_long_request_of_one_tenant_does_not_delay_those_of_another() {
    let pool = TextPool::start(1, 1 << 30).expect("threads");
    let (gate, gated) = mpsc::channel::<()>();
    let gated = Mutex::new(gated);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    // Each piece waits at the gate.
    let each = move |_: Range<usize>| {
        let _ = gated.lock().expect("no panic").recv();
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<(), ()>(())
    };
    let flood = vec![PIECE_BYTES; 100];
    runtime().block_on(async {
        let mut long = Box::pin(pool.run_pieces(ONE, &flood, each, |_| Ok(())));
        queued(long.as_mut()).await;
        assert_eq!(pool.run(TWO, 10, || 1).await, Ok(Some(1)), "a short text has a thread of its own");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        let mut other = Box::pin(pool.run(TWO, PIECE_BYTES, || 2));
        queued(other.as_mut()).await;
        // One piece may be in flight and one may run before the other tenant.
        gate.send(()).expect("it waits");
        gate.send(()).expect("it waits");
        assert_eq!(other.await, Ok(Some(2)));
        assert!(ran.load(Ordering::SeqCst) <= 2, "{ran:?} pieces ran before the other tenant's");
        // The rest of the cancelled request is skipped, except the piece in flight.
        drop(long);
        drop(gate);
        assert_eq!(pool.run(ONE, PIECE_BYTES, || 3).await, Ok(Some(3)));
        assert!(ran.load(Ordering::SeqCst) <= 3, "{ran:?}");
    });
}

#[test]
fn text_beyond_the_bound_is_refused_and_counted_until_it_is_done() {
    let pool = TextPool::start(1, 100).expect("threads");
    let (gate, gated) = mpsc::channel::<()>();
    runtime().block_on(async {
        let mut alone = Box::pin(pool.run(ONE, 1000, move || gated.recv().is_err()));
        queued(alone.as_mut()).await;
        assert_eq!(pool.run(ONE, 1, || ()).await, Err(PoolFull));
        assert_eq!(pool.run(TWO, 1, || ()).await, Ok(Some(())), "another tenant has its share");
        drop(gate);
        assert_eq!(alone.await, Ok(Some(true)), "an empty queue admits any request");
    });
    // A thread gives the bytes back just after it has answered.
    while pool.shared.lock().quota.total() > 0 {
        thread::yield_now();
    }
}
