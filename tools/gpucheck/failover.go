package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"remuda/internal/bytesize"
)

// longTime bounds what copies the weights a few times: making their file, the start
// of a pair, one failover with the restart of the killed engine.
const longTime = 3 * time.Minute

// checkFailover measures the failovers of two pairs. The engines of the second one do
// not read the weights again when they wake.
func (r *run) checkFailover(ctx context.Context) {
	const name = "3 failover"
	defer r.killAll()
	if r.step(ctx, name, "the weights file is made", longTime, r.makeWeights) != nil {
		return
	}
	if r.step(ctx, name, "memory service and lockd start", time.Minute, func(ctx context.Context) (seen, error) {
		return seen{}, r.startNode(ctx)
	}) != nil {
		return
	}
	for _, verify := range []string{"always", "import"} {
		how := "; weights checked with -verify " + verify
		var p *pair
		if r.step(ctx, name, "a pair starts and shares its weights"+how, longTime, func(ctx context.Context) (_ seen, err error) {
			if p, err = r.newPair(verify); err != nil {
				return seen{}, err
			}
			return p.begin(ctx)
		}) != nil {
			return
		}
		what := fmt.Sprintf("kill -9 of the active engine to the first token of the other, n=%d%s", r.cfg.n, how)
		_ = r.step(ctx, name, what, r.cfg.budget, func(ctx context.Context) (seen, error) {
			sum, s, err := r.failovers(ctx, p, r.cfg.n, killed)
			if sum.n > 0 {
				r.failover[verify] = sum
			}
			return s, err
		})
		if verify == "import" {
			r.checkOthers(ctx, name, p)
		}
		if r.step(ctx, name, "the pair ends on SIGTERM"+how, time.Minute, func(context.Context) (seen, error) { return seen{}, p.stop() }) != nil {
			return
		}
	}
}

// few is how often the slower ways of a failover, and a sleep, are tried at most.
const few = 5

// checkOthers has a pair fail over for other reasons than a death, and sleep.
func (r *run) checkOthers(ctx context.Context, name string, p *pair) {
	n := min(r.cfg.n, few)
	for _, way := range []struct {
		what   string
		strike strike
	}{
		{"the active engine's worker hangs", workerHangs},
		{"the active engine is told to hand over", handsOver},
	} {
		_ = r.step(ctx, name, fmt.Sprintf("%s, to the first token of the other, n=%d", way.what, n), r.cfg.budget, func(ctx context.Context) (seen, error) {
			_, s, err := r.failovers(ctx, p, n, way.strike)
			return s, err
		})
	}
	_ = r.step(ctx, name, fmt.Sprintf("both engines sleep, with the weights in host memory, to the first token after the order to wake, n=%d", n), r.cfg.budget, func(ctx context.Context) (seen, error) {
		return r.naps(ctx, p, n)
	})
}

// failovers has the active engine of a pair end n times. With an error it returns what was measured so far.
func (r *run) failovers(ctx context.Context, p *pair, n int, strike strike) (sum summary, s seen, err error) {
	var all []time.Duration
	for len(all) < n && err == nil {
		one, cancel := context.WithTimeout(ctx, longTime)
		var took time.Duration
		if took, err = p.failOver(one, strike); err == nil {
			all = append(all, took)
		} else {
			err = fmt.Errorf("failover %d of %d: %w", len(all)+1, n, err)
		}
		cancel()
	}
	if len(all) > 0 {
		sum = summarize(all)
		s = seen{sum.String(), Figures{}}
		sum.addTo(s.figures, "failover")
	}
	return sum, s, err
}

// naps has a pair sleep n times.
func (r *run) naps(ctx context.Context, p *pair, n int) (s seen, err error) {
	var wakes []time.Duration
	var most int64
	for i := range n {
		one, cancel := context.WithTimeout(ctx, longTime)
		kept, took, err := p.nap(one)
		cancel()
		if err != nil {
			return s, fmt.Errorf("sleep %d of %d: %w", i+1, n, err)
		}
		most, wakes = max(most, kept), append(wakes, took)
	}
	sum := summarize(wakes)
	s = seen{fmt.Sprintf("%s; asleep, the pair holds at most %s of the GPU", sum, bytesize.Text(most)), Figures{"asleep_bytes": float64(most)}}
	sum.addTo(s.figures, "wake")
	return s, nil
}

// makeWeights makes the weights file of the pair.
func (r *run) makeWeights(ctx context.Context) (_ seen, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.cfg.weightsDir, &st); err != nil {
		return seen{}, fmt.Errorf("-weights-dir %s: %w", r.cfg.weightsDir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < r.cfg.weights+r.cfg.weights/64 {
		return seen{}, fmt.Errorf("%s has %s free and -weights is %s: try a smaller -weights or another -weights-dir",
			r.cfg.weightsDir, bytesize.Text(int64(free)), r.report.Weights)
	}
	if r.weightsDir, err = os.MkdirTemp(r.cfg.weightsDir, "gpu-check-"); err != nil {
		return seen{}, fmt.Errorf("make a directory for the weights: %w", err)
	}
	path := filepath.Join(r.weightsDir, "weights.safetensors")
	p, err := r.start("3-weights", nil, "remuda", "sim", "weights", "-size", fmt.Sprint(r.cfg.weights), path)
	if err != nil {
		return seen{}, err
	}
	if err := p.Wait(ctx); err != nil {
		return seen{}, errors.Join(err, p.Running())
	}
	r.weights = path
	return note("%s in %s", r.report.Weights, r.cfg.weightsDir), nil
}
