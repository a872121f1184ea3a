package gpucheck

import (
	"context"
	"fmt"
	"time"
)

// coldTime is for one cold load.
const coldTime = time.Minute

// checkCold: what a failover is to be compared with.
func (r *run) checkCold(ctx context.Context) {
	c := &check{r, "5 cold load"}
	what := fmt.Sprintf("a new process loads the same weights from the page cache into private memory, without a check, n=%d", r.cfg.Cold)
	if r.weights == "" {
		c.skip(what, "there is no weights file")
		return
	}
	defer func() { _ = r.quiet() }()
	_ = c.step(ctx, what, fileTime+time.Duration(r.cfg.Cold)*coldTime, func(ctx context.Context) (seen, error) {
		if err := r.warm(ctx); err != nil {
			return seen{}, fmt.Errorf("read the weights file: %w", err)
		}
		var whole, loads []time.Duration
		for i := range r.cfg.Cold {
			one, cancel := context.WithTimeout(ctx, coldTime)
			began := time.Now()
			p, err := r.client(fmt.Sprintf("5-cold-%d", i+1), "")
			var a answer
			if err == nil {
				a, err = p.tell(one, order{Do: doLoad, Path: r.weights})
			}
			took := time.Since(began)
			if err == nil {
				err = p.kill(one)
			}
			cancel()
			if err != nil {
				return seen{}, fmt.Errorf("cold load %d: %w", i+1, err)
			}
			whole, loads = append(whole, took), append(loads, a.Took)
		}
		f := Figures{}
		process, load := Summarize(whole), Summarize(loads)
		process.figures(f, "cold_process")
		load.figures(f, "cold_load")
		text := fmt.Sprintf("from the start of the process: %s; the load alone: p50 %s, %s", process, short(load.P50), rate(uint64(r.cfg.Weights), load.P50))
		for _, t := range []struct {
			how string
			s   Summary
		}{{"-verify always", r.takeovers.always}, {"-verify import", r.takeovers.imported}} {
			if t.s.N > 0 {
				text += fmt.Sprintf("; a failover with %s took %.2f of that", t.how, t.s.P50.Seconds()/process.P50.Seconds())
			}
		}
		return seen{text, f}, nil
	})
}
