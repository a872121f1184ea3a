package gpucheck

import (
	"context"
	"fmt"
	"time"

	"remuda/device-plugin/gms/wire"
)

// sizes are those of the allocations that total bytes are cut into. The last one
// is not a multiple of what GPUs hand out, and is rounded up to it.
func sizes(total uint64) []uint64 {
	return []uint64{total / 2, total / 4, total / 8, total/8 - 1000}
}

// writer starts a client that has written and not committed.
func (r *run) writer(ctx context.Context, name, socket string, seed uint64) (*remote, answer, error) {
	w, err := r.client(name, socket)
	if err != nil {
		return nil, answer{}, err
	}
	if _, err := w.tell(ctx, order{Do: doConnect, Lock: wire.RW}); err != nil {
		return nil, answer{}, err
	}
	a, err := w.tell(ctx, order{Do: doWrite, Sizes: sizes(uint64(r.cfg.Memory)), Seed: seed})
	return w, a, err
}

// reader starts a client that has everything mapped.
func (r *run) reader(ctx context.Context, name, socket string) (*remote, answer, error) {
	c, err := r.client(name, socket)
	if err != nil {
		return nil, answer{}, err
	}
	if _, err := c.tell(ctx, order{Do: doConnect, Lock: wire.RO}); err != nil {
		return nil, answer{}, err
	}
	a, err := c.tell(ctx, order{Do: doMap})
	return c, a, err
}

// same has a client read everything and compares.
func (c *remote) same(ctx context.Context, want uint64) (answer, error) {
	a, err := c.tell(ctx, order{Do: doDigest})
	if err == nil && a.Digest != want {
		err = fmt.Errorf("%s: the bytes have xxh64 %016x, want %016x", c.name, a.Digest, want)
	}
	return a, err
}

// checkSharing: memory over real sockets between real processes, without a keeper.
func (r *run) checkSharing(ctx context.Context) {
	c := &check{r, "2 sharing"}
	size := uint64(r.cfg.Memory)
	var base baseline
	var s *service
	var want uint64
	var hash string
	var one, two *remote
	defer func() { _ = r.quiet() }()

	if c.step(ctx, "the service starts", startTime, func(ctx context.Context) (_ seen, err error) {
		if base, err = r.baseline(); err != nil {
			return seen{}, err
		}
		if s, err = r.service("2-gms", ""); err != nil {
			return seen{}, err
		}
		_, err = s.await(ctx, answers)
		took := time.Since(s.began)
		return seen{"answers " + short(took) + " after its start; in use before: " + amount(base.used), Figures{"start_seconds": took.Seconds(), "baseline_bytes": float64(base.used)}}, err
	}) != nil {
		return
	}

	if c.step(ctx, "allocate, export, map, write; kill -9 before the commit: nothing is committed and the memory goes back", copyTime, func(ctx context.Context) (seen, error) {
		w, a, err := r.writer(ctx, "2-writer-1", s.socket, 1)
		if err != nil {
			return seen{}, err
		}
		if err := base.held(size); err != nil {
			return seen{}, fmt.Errorf("while the writer holds its memory: %w", err)
		}
		if err := w.kill(ctx); err != nil {
			return seen{}, err
		}
		took, err := base.returned(ctx, size)
		if err != nil {
			return seen{}, err
		}
		_, err = s.await(ctx, func(st *wire.GetRuntimeStateResponse) error {
			if st.Committed || st.AllocationCount != 0 || st.HasRWSession {
				return fmt.Errorf("the dead writer left %+v", *st)
			}
			return nil
		})
		return seen{fmt.Sprintf("%s written at %s; back at the driver %s after the writer's end", amount(a.Bytes), rate(a.Bytes, a.Took), short(took)),
			Figures{"write_seconds": a.Took.Seconds(), "bytes": float64(a.Bytes), "return_seconds": took.Seconds()}}, err
	}) != nil {
		return
	}

	if c.step(ctx, "write and commit; kill -9 after the commit: the layout and its memory stay", copyTime, func(ctx context.Context) (seen, error) {
		w, a, err := r.writer(ctx, "2-writer-2", s.socket, 2)
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
		if _, err := s.await(ctx, func(st *wire.GetRuntimeStateResponse) error {
			if st.ROSessionCount != 0 {
				return fmt.Errorf("%d sessions are left", st.ROSessionCount)
			}
			return has(hash)(st)
		}); err != nil {
			return seen{}, err
		}
		return seen{fmt.Sprintf("committed in %s, layout %.12s", short(committed.Took), hash), Figures{"commit_seconds": committed.Took.Seconds()}}, base.held(size)
	}) != nil {
		return
	}

	if c.step(ctx, "two other processes import it at once and read the same bytes", 2*copyTime, func(ctx context.Context) (seen, error) {
		var a, b answer
		var err error
		if one, a, err = r.reader(ctx, "2-reader-1", s.socket); err != nil {
			return seen{}, err
		}
		if two, b, err = r.reader(ctx, "2-reader-2", s.socket); err != nil {
			return seen{}, err
		}
		st, err := s.state(ctx)
		if err != nil {
			return seen{}, err
		}
		if st.ROSessionCount != 2 {
			return seen{}, fmt.Errorf("there are %d sessions: want 2", st.ROSessionCount)
		}
		read, err := one.same(ctx, want)
		if err != nil {
			return seen{}, err
		}
		if _, err = two.same(ctx, want); err != nil {
			return seen{}, err
		}
		return seen{fmt.Sprintf("%s mapped in %s and %s; xxh64 %016x read back twice, at %s with the digest", amount(a.Bytes), short(a.Took), short(b.Took), want, rate(read.Bytes, read.Took)),
			Figures{"import_seconds": a.Took.Seconds(), "second_import_seconds": b.Took.Seconds(), "read_seconds": read.Took.Seconds()}}, nil
	}) != nil {
		return
	}

	_ = c.step(ctx, "kill -9 of the service and of one reader: the memory stays; of the last: it goes back", 2*copyTime, func(ctx context.Context) (seen, error) {
		if err := s.kill(ctx); err != nil {
			return seen{}, err
		}
		if err := base.held(size); err != nil {
			return seen{}, fmt.Errorf("with two readers: %w", err)
		}
		if err := one.kill(ctx); err != nil {
			return seen{}, err
		}
		if err := base.held(size); err != nil {
			return seen{}, fmt.Errorf("with one reader: %w", err)
		}
		if _, err := two.same(ctx, want); err != nil {
			return seen{}, err
		}
		if err := two.kill(ctx); err != nil {
			return seen{}, err
		}
		took, err := base.returned(ctx, size)
		return seen{"not a byte changed; back at the driver " + short(took) + " after the last reader's end", Figures{"return_seconds": took.Seconds()}}, err
	})
}

// quiet ends what a check has left running.
func (r *run) quiet() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	return r.endAll(ctx)
}
