package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/internal/replica"
)

// wantedKey is a model, or one plain job group of it: each may show the model in its own way.
type wantedKey struct {
	model string
	// variant is the only one to read; empty: all.
	variant string
}

// wanted is a model or job group about which questions came, and how its engines are read.
type wanted struct {
	wantedKey
	asked time.Time
	// shown, dialect and dialects are those of the last question.
	shown, dialect string
	dialects       map[string]string
	// read has the readers of pages by dialect.
	read map[string]*pages
	// first is closed when the model was read once.
	first chan struct{}
}

// keyOf is what a question is about. A group without a name of its own has all engines.
func keyOf(q *Question) wantedKey {
	k := wantedKey{model: q.Model}
	if g := q.Group; q.Replicas == nil && g != nil && g.Variant != DefaultVariant {
		k.variant = g.Variant
	}
	return k
}

// pages reads the engines of a variant. Every dialect of the question has one.
func (w *wanted) pages(variant string) *pages {
	if d := w.dialects[variant]; d != "" {
		return w.read[d]
	}
	return w.read[w.dialect]
}

// Report answers what is known of a model's engines. It fails only where Consul has never
// answered. The first who asks about a model waits until its engines were read.
func (s *Scraper) Report(ctx context.Context, q Question) (Report, error) {
	w, first, err := s.want(q)
	if err != nil {
		return Report{}, err
	}
	patience, cancel := context.WithTimeout(ctx, s.cfg.FirstWait)
	defer cancel()
	select {
	case <-s.known:
	default:
		select {
		case <-s.known:
		case <-patience.Done():
			if first {
				s.unwant(w)
			}
			return Report{}, s.never(ctx)
		}
	}
	if first {
		s.mu.Lock()
		jobs := s.jobs(w)
		s.mu.Unlock()
		s.read(patience, jobs)
		close(w.first)
	} else {
		select {
		case <-w.first:
		case <-patience.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return Report{}, fmt.Errorf("read engines of model %q: %w", q.Model, err)
	}
	return s.report(q, w), nil
}

func (s *Scraper) never(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for Consul: %w", err)
	}
	return errors.New("Consul has not returned a list of engines yet")
}

// want notes that a model is wanted, and tells whether it was not before: the caller must
// then close first of what it got, or take it back with unwant.
func (s *Scraper) want(q Question) (w *wanted, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	at := keyOf(&q)
	if w = s.wanted[at]; w != nil && w.same(q) {
		w.asked = now
		return w, false, nil
	}
	next := &wanted{wantedKey: at, asked: now, shown: q.Shown, dialect: q.Dialect, dialects: q.Dialects, read: map[string]*pages{}, first: make(chan struct{})}
	for _, name := range append([]string{q.Dialect}, values(q.Dialects)...) {
		if next.read[name] != nil {
			continue
		}
		var opts enginemetrics.Options
		if q.Shown != "" {
			opts.Models = []string{q.Shown}
		}
		if name != "" {
			if opts.Dialect, err = enginemetrics.Lookup(name); err != nil {
				return nil, false, fmt.Errorf("engines of model %q: %w", q.Model, err)
			}
		}
		next.read[name] = newPages(opts)
	}
	s.wanted[at] = next
	return next, true, nil
}

// unwant takes back a want that came to nothing, and lets nobody wait for it.
func (s *Scraper) unwant(w *wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(w.first)
	if s.wanted[w.wantedKey] == w {
		delete(s.wanted, w.wantedKey)
	}
}

func values(m map[string]string) []string {
	return slices.Sorted(maps.Values(m))
}

// same tells whether a question reads the pages as the ones before did.
func (w *wanted) same(q Question) bool {
	return w.shown == q.Shown && w.dialect == q.Dialect && maps.Equal(w.dialects, q.Dialects)
}

// report puts together what is known now.
func (s *Scraper) report(q Question, w *wanted) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	var out Report
	if !s.lost.IsZero() {
		out.Notes = append(out.Notes, fmt.Sprintf("Consul has been unreachable for %s: using the last known engines",
			idle(now, s.lost).Round(time.Second)))
	}
	m := s.models[q.Model]
	if m == nil {
		m = &modelEngines{}
	}
	there := map[string]bool{}
	for _, e := range m.use {
		name := e.Name.String()
		there[name] = true
		v := s.peaks.Read(name, now)
		if p := w.pages(e.Name.Variant); p.silent {
			v = enginemetrics.View{Replica: name, Class: enginemetrics.ClassUnknown, Why: "engines of dialect " + p.sample.Dialect + " have no metrics", Last: p.sample}
		} else if fault := s.faults[name]; fault != "" && v.Class != enginemetrics.ClassOK {
			v.Why += ": " + fault
		}
		out.Engines = append(out.Engines, Reported{View: v, Variant: e.Name.Variant, Slots: e.Slots})
	}
	for variant, n := range m.notPassing {
		if out.NotPassing == nil {
			out.NotPassing = map[string]int{}
		}
		out.NotPassing[variant] = n
	}
	for _, name := range q.Replicas {
		if there[name] {
			continue
		}
		// What was last seen of it may still be of use, as of one that drains.
		v := s.peaks.Read(name, now)
		if v.Class == enginemetrics.ClassUnknown && v.Points == 0 {
			v.Why = "Consul lists no usable engine of it"
		}
		variant := ""
		if n, err := replica.ParseName(name); err == nil {
			variant = n.Variant
		}
		out.Engines = append(out.Engines, Reported{View: v, Variant: variant, Gone: true})
	}
	return out
}
