package gpucheck

import (
	"context"
	"fmt"
	"time"
)

// checkKeeper: what is committed survives the service's crash with its keeper, and
// nothing more.
func (r *run) checkKeeper(ctx context.Context) {
	c := &check{r, "3 keeper"}
	size := uint64(r.cfg.Memory)
	var base baseline
	var s *service
	var k *process
	var keeper, hash, nonce string
	var want uint64
	var reader, fresh *remote
	defer func() { _ = r.quiet() }()

	if c.step(ctx, "a layout is committed and kept, and a reader has it mapped", startTime+copyTime, func(ctx context.Context) (_ seen, err error) {
		if base, err = r.baseline(); err != nil {
			return seen{}, err
		}
		if k, keeper, err = r.keeper("3-keeper"); err != nil {
			return seen{}, err
		}
		if s, err = r.service("3-gms-1", keeper); err != nil {
			return seen{}, err
		}
		if _, err := s.await(ctx, answers); err != nil {
			return seen{}, err
		}
		w, a, err := r.writer(ctx, "3-writer", s.socket, 3)
		if err != nil {
			return seen{}, err
		}
		want = a.Digest
		committed, err := w.tell(ctx, order{Do: doCommit})
		if err != nil {
			return seen{}, err
		}
		hash = committed.Hash
		if err := w.kill(ctx); err != nil {
			return seen{}, err
		}
		if reader, _, err = r.reader(ctx, "3-reader-1", s.socket); err != nil {
			return seen{}, err
		}
		st, err := s.await(ctx, has(hash))
		if err != nil {
			return seen{}, err
		}
		nonce = st.Nonce
		return seen{fmt.Sprintf("committed and kept in %s, layout %.12s", short(committed.Took), hash), Figures{"commit_seconds": committed.Took.Seconds()}}, base.held(size)
	}) != nil {
		return
	}

	if c.step(ctx, "kill -9 of the service while a reader is mapped: the next one has the same layout and a new nonce", startTime, func(ctx context.Context) (seen, error) {
		killed := time.Now()
		if err := s.kill(ctx); err != nil {
			return seen{}, err
		}
		dead := time.Since(killed)
		if err := base.held(size); err != nil {
			return seen{}, err
		}
		var err error
		if s, err = r.service("3-gms-2", keeper); err != nil {
			return seen{}, err
		}
		st, err := s.await(ctx, has(hash))
		if err != nil {
			return seen{}, err
		}
		ready := time.Since(s.began)
		if st.Nonce == nonce || st.Nonce == "" {
			return seen{}, fmt.Errorf("the new service has the nonce %q, the old one had %q", st.Nonce, nonce)
		}
		return seen{fmt.Sprintf("ready %s after its start (the dead one took %s to be gone), layout %.12s", short(ready), short(dead), st.MemoryLayoutHash),
			Figures{"ready_seconds": ready.Seconds(), "death_seconds": dead.Seconds()}}, nil
	}) != nil {
		return
	}

	if c.step(ctx, "no byte is lost: the mapped reader and one that imports from the new service read the same", 2*copyTime, func(ctx context.Context) (seen, error) {
		if _, err := reader.same(ctx, want); err != nil {
			return seen{}, err
		}
		var a answer
		var err error
		if fresh, a, err = r.reader(ctx, "3-reader-2", s.socket); err != nil {
			return seen{}, err
		}
		_, err = fresh.same(ctx, want)
		return seen{fmt.Sprintf("xxh64 %016x in both; the kept descriptors were imported in %s", want, short(a.Took)), Figures{"import_seconds": a.Took.Seconds()}}, err
	}) != nil {
		return
	}

	_ = c.step(ctx, "kill -9 of service and keeper: readers keep the memory; it goes back with the last", copyTime, func(ctx context.Context) (seen, error) {
		for _, p := range []*process{s.process, k, fresh.process} {
			if err := p.kill(ctx); err != nil {
				return seen{}, err
			}
		}
		if err := base.held(size); err != nil {
			return seen{}, fmt.Errorf("with one reader: %w", err)
		}
		if _, err := reader.same(ctx, want); err != nil {
			return seen{}, err
		}
		if err := reader.kill(ctx); err != nil {
			return seen{}, err
		}
		took, err := base.returned(ctx, size)
		return seen{"back at the driver " + short(took) + " after the last reader's end", Figures{"return_seconds": took.Seconds()}}, err
	})
}
