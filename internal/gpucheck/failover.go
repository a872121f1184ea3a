package gpucheck

import (
	"context"
	"fmt"
	"time"
)

const (
	// pairTime is for loading the weights, and for both engines to check them.
	pairTime = 2 * time.Minute
	// roundTime is for one failover and the restart of the engine that was killed.
	roundTime = 2 * time.Minute
	// coldShare is how much of what is left of the budget is kept for the cold
	// loads, and coldReserve the most of it.
	coldShare   = 0.2
	coldReserve = 45 * time.Second
	// alwaysShare is how much of what is left the failovers with a check at each
	// wake may take.
	alwaysShare = 0.65
)

// checkFailover: a pair that shares its weights, and the time from kill -9 of the
// engine that serves to the first token of the other.
func (r *run) checkFailover(ctx context.Context) {
	c := &check{r, "4 failover"}
	size := uint64(r.cfg.Weights)
	var base baseline
	var s *service
	var l *locks
	defer func() { _ = r.quiet() }()

	if c.step(ctx, "the weights file is made", fileTime, r.makeWeights) != nil {
		return
	}
	if c.step(ctx, "the GPU has room for the weights", quickTime, func(context.Context) (_ seen, err error) {
		if base, err = r.baseline(); err != nil || r.cfg.Meter != meterDriver {
			return note("%s in use", amount(base.used)), err
		}
		if free := r.report.MemoryBytes - min(base.used, r.report.MemoryBytes); free < size+size/8+memoryRoom {
			return seen{}, fmt.Errorf("%s are free, and %s of weights with what else engines need do not fit: try a smaller -weights", amount(free), r.cfg.Weights)
		}
		return note("%s of %s in use", amount(base.used), amount(r.report.MemoryBytes)), nil
	}) != nil {
		return
	}
	if c.step(ctx, "service, keeper and lockd start", startTime, func(ctx context.Context) (seen, error) {
		_, keeper, err := r.keeper("4-keeper")
		if err != nil {
			return seen{}, err
		}
		if s, err = r.service("4-gms", keeper); err != nil {
			return seen{}, err
		}
		if l, err = r.lockd("4-lockd"); err != nil {
			return seen{}, err
		}
		_, err = s.await(ctx, answers)
		return note("answers %s after its start", short(time.Since(s.began))), err
	}) != nil {
		return
	}
	now := time.Now()
	left := r.deadline.Sub(now) - endTime
	left -= min(coldReserve, time.Duration(coldShare*float64(left)))
	first := now.Add(time.Duration(alwaysShare * float64(left)))
	// Neither pair needs the other.
	r.failovers(ctx, c, base, s.socket, l, verifyAlways, first)
	r.failovers(ctx, c, base, s.socket, l, verifyImport, now.Add(left))
	_ = c.step(ctx, "the pair and the service end: the memory goes back", startTime, func(ctx context.Context) (seen, error) {
		if err := r.quiet(); err != nil {
			return seen{}, err
		}
		took, err := base.returned(ctx, size)
		return seen{"back at the driver " + short(took) + " after the end of the last process", Figures{"return_seconds": took.Seconds()}}, err
	})
}

// failovers runs a pair whose engines verify so, until the engine that serves was
// killed often enough or the time is up. The service and lockd go on afterwards.
func (r *run) failovers(ctx context.Context, c *check, base baseline, socket string, l *locks, verify string, until time.Time) {
	p, err := r.newPair(socket, l, verify)
	if err != nil {
		c.fail("addresses for a pair are free", err)
		return
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.Background(), 3*stopGrace)
		defer cancel()
		if err := p.stop(ending); err != nil {
			c.fail("the pair ends when it is asked to", err)
		}
	}()
	how := map[string]string{
		verifyAlways: "digest of all bytes at import and at every wake (-verify always, the default)",
		verifyImport: "digest of all bytes at import only (-verify import)",
	}[verify]
	if c.step(ctx, "a pair starts and shares one copy; "+how, pairTime, func(ctx context.Context) (seen, error) { return p.begin(ctx, base) }) != nil {
		return
	}
	_ = c.step(ctx, fmt.Sprintf("kill -9 of the active engine to the first token of the other, n=%d; %s", r.cfg.N, how), time.Until(r.deadline), func(ctx context.Context) (seen, error) {
		var all []takeover
		for len(all) < r.cfg.N && time.Now().Before(until) {
			one, cancel := context.WithTimeout(ctx, roundTime)
			t, err := p.takeover(one)
			cancel()
			if err != nil {
				return described(all, uint64(r.cfg.Weights)), fmt.Errorf("failover %d: %w", len(all)+1, err)
			}
			all = append(all, t)
		}
		if verify == verifyAlways {
			r.takeovers.always = Summarize(totals(all))
		} else {
			r.takeovers.imported = Summarize(totals(all))
		}
		if len(all) < r.cfg.N {
			return described(all, uint64(r.cfg.Weights)), fmt.Errorf("only %d of %d failovers fit into the time: raise -budget, or lower -n or -weights", len(all), r.cfg.N)
		}
		return described(all, uint64(r.cfg.Weights)), nil
	})
}

// begin starts both engines.
func (p *pair) begin(ctx context.Context, base baseline) (seen, error) {
	size := uint64(p.r.cfg.Weights)
	began := time.Now()
	if err := p.engines[0].start(); err != nil {
		return seen{}, err
	}
	// An engine that is asked before it has slept once cannot be put to sleep.
	if err := p.engines[0].active(ctx); err != nil {
		return seen{}, err
	}
	if _, err := p.engines[0].firstToken(ctx); err != nil {
		return seen{}, err
	}
	served := time.Since(began)
	began = time.Now()
	if err := p.engines[1].start(); err != nil {
		return seen{}, err
	}
	if _, _, _, err := p.settled(ctx); err != nil {
		return seen{}, err
	}
	stands := time.Since(began)
	more, err := base.more()
	if err == nil {
		err = base.held(size)
	}
	// A context of each process is in it on a GPU, and that is far from a copy.
	if err == nil && more > int64(size+size/2+2*memoryRoom) {
		err = fmt.Errorf("%s more than before are in use: that is more than one copy", amount(uint64(more)))
	}
	return seen{fmt.Sprintf("the primary's first token came %s after its start, the shadow stood by after %s; in use with both: %s more than before", short(served), short(stands), amount(uint64(max(more, 0)))),
		Figures{"primary_first_token_seconds": served.Seconds(), "shadow_standby_seconds": stands.Seconds(), "more_bytes": float64(more)}}, err
}

func totals(all []takeover) []time.Duration {
	return pick(all, func(t takeover) time.Duration { return t.total })
}

func pick(all []takeover, of func(takeover) time.Duration) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, t := range all {
		out[i] = of(t)
	}
	return out
}

// described is the summary of failovers, in all and in parts.
func described(all []takeover, size uint64) seen {
	if len(all) == 0 {
		return seen{}
	}
	f := Figures{}
	total := Summarize(totals(all))
	total.figures(f, "failover")
	part := func(name string, of func(takeover) time.Duration) Summary {
		s := Summarize(pick(all, of))
		s.figures(f, name)
		return s
	}
	dead := part("proven_dead", func(t takeover) time.Duration { return t.dead })
	granted := part("lock_granted", func(t takeover) time.Duration { return t.granted })
	remap := part("remap", func(t takeover) time.Duration { return t.remap })
	digest := part("digest_check", func(t takeover) time.Duration { return t.check })
	rest := part("rest", func(t takeover) time.Duration { return t.total - t.granted - t.remap - t.check })
	text := fmt.Sprintf("%s; p50 of the parts: holder proven dead at %s, lock granted at %s, then remap %s, digest check %s", total, short(dead.P50), short(granted.P50), short(remap.P50), short(digest.P50))
	if digest.P50 > 0 {
		text += fmt.Sprintf(" (%s)", rate(size, digest.P50))
	}
	return seen{text + ", all else " + short(rest.P50), f}
}
