package observe

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-cleanhttp"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/internal/replica"
)

// Scraper is an Reporter. Its methods are safe for concurrent use.
type Scraper struct {
	cfg    ScrapeConfig
	client *http.Client
	buffer sync.Pool // of *bytes.Buffer
	// slots bounds the readings at once.
	slots chan struct{}
	// known is closed when Consul's first list came.
	known chan struct{}

	mu sync.Mutex // guards what follows, held for arithmetic only
	// models has what Consul says of each model.
	models map[string]*modelEngines
	// lost is since when Consul is away; zero while it is there.
	lost   time.Time
	wanted map[wantedKey]*wanted
	peaks  *enginemetrics.Peaks
	// faults are why the last reading of a replica failed, busy the replicas being read.
	faults map[string]string
	busy   map[string]chan struct{}
}

var _ Reporter = (*Scraper)(nil)

// modelEngines are the engines of one model.
type modelEngines struct {
	// use has of each replica the one that gets requests, sorted by replica.
	use []replica.Engine
	// notPassing counts replicas of which no engine may be used, by variant.
	notPassing map[string]int
}

// NewScraper checks cfg; nothing starts before Run.
func NewScraper(cfg ScrapeConfig) (*Scraper, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("engines: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	transport := cleanhttp.DefaultPooledTransport()
	transport.Proxy = nil // engines are on the own network
	transport.MaxIdleConnsPerHost = 1
	transport.MaxIdleConns = 0 // as many as there are engines
	transport.IdleConnTimeout = 2 * cfg.Interval
	return &Scraper{
		cfg: cfg,
		// Who redirects is no engine.
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		slots:  make(chan struct{}, cfg.Concurrency), known: make(chan struct{}),
		models: map[string]*modelEngines{}, wanted: map[wantedKey]*wanted{}, peaks: enginemetrics.NewPeaks(),
		faults: map[string]string{}, busy: map[string]chan struct{}{},
	}, nil
}

// Name implements Reporter.
func (*Scraper) Name() string { return "consul" }

// Run watches Consul and reads engines until ctx ends, and returns its error.
func (s *Scraper) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	var running sync.WaitGroup
	running.Go(func() { s.loop(ctx) })
	err := s.cfg.Watcher.Watch(ctx, s.update, s.away)
	running.Wait()
	return err
}

// loop starts the readings that are due. It waits for none: an engine that hangs must not hold up the others.
func (s *Scraper) loop(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.start(ctx, &running, s.due())
		}
	}
}

// update takes over Consul's list.
func (s *Scraper) update(list []replica.Engine, _ bool) {
	models := groupEngines(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models, s.lost = models, time.Time{}
	select {
	case <-s.known:
	default:
		close(s.known)
	}
}

func (s *Scraper) away() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = s.cfg.Now()
}

// groupEngines picks the engine of each replica that gets requests: of those whose check passes,
// also on a node that Consul does not see any more, the one with the highest token.
func groupEngines(list []replica.Engine) map[string]*modelEngines {
	best := map[replica.Name]replica.Engine{}
	ill := map[replica.Name]bool{}
	for _, e := range list {
		if !e.Passing && !e.NodeDown {
			ill[e.Name] = true
			continue
		}
		o, there := best[e.Name]
		if c := e.Token.Compare(o.Token); !there || c > 0 || c == 0 && e.Role < o.Role {
			best[e.Name] = e
		}
	}
	out := map[string]*modelEngines{}
	of := func(model string) *modelEngines {
		if out[model] == nil {
			out[model] = &modelEngines{notPassing: map[string]int{}}
		}
		return out[model]
	}
	for name, e := range best {
		m := of(name.Model)
		m.use = append(m.use, e)
	}
	for name := range ill {
		if _, serves := best[name]; !serves {
			of(name.Model).notPassing[name.Variant]++
		}
	}
	for _, m := range out {
		slices.SortFunc(m.use, func(a, b replica.Engine) int { return cmp.Compare(a.Name.String(), b.Name.String()) })
	}
	return out
}

// due returns the engines to read: those of the wanted models, except where the last reading still runs. It
// forgets models that are not wanted any more, and engines that are gone.
func (s *Scraper) due() []job {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	s.sweep(now)
	s.peaks.Forget(now)
	var out []job
	lives := map[string]bool{}
	for _, w := range s.wanted {
		for _, j := range s.jobs(w) {
			lives[j.replica] = true
			if s.busy[j.replica] == nil {
				out = append(out, j)
			}
		}
	}
	for name := range s.faults {
		if !lives[name] {
			delete(s.faults, name)
		}
	}
	return out
}

// jobs are the readings to make for a model, or for one job group of it. mu is held.
func (s *Scraper) jobs(w *wanted) []job {
	m := s.models[w.model]
	if m == nil {
		return nil
	}
	out := make([]job, 0, len(m.use))
	for _, e := range m.use {
		if w.variant != "" && e.Name.Variant != w.variant {
			continue
		}
		if p := w.pages(e.Name.Variant); !p.silent {
			out = append(out, job{replica: e.Name.String(), url: "http://" + e.HostPort() + "/metrics", pages: p})
		}
	}
	return out
}

// sweep forgets models that nobody asks for. mu is held.
func (s *Scraper) sweep(now time.Time) {
	for at, w := range s.wanted {
		if idle(now, w.asked) > s.cfg.IdleAfter {
			delete(s.wanted, at)
		}
	}
}
