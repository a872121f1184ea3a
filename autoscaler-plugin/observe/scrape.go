package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// pages reads the pages of the engines of one variant. Its parsers are kept for the next
// page; one is for one page at a time.
type pages struct {
	parsers sync.Pool // of *enginemetrics.Parser
	// silent: such engines show no metrics, which is what sample says.
	silent bool
	sample enginemetrics.Sample
}

func newPages(opts enginemetrics.Options) *pages {
	p := &pages{parsers: sync.Pool{New: func() any { return enginemetrics.NewParser(opts) }}}
	if d := opts.Dialect; d != nil && len(d.Metrics) == 0 {
		p.silent = true
		p.sample, _ = p.parse(nil) // no page is needed for that
	}
	return p
}

func (p *pages) parse(page []byte) (enginemetrics.Sample, error) {
	parser := p.parsers.Get().(*enginemetrics.Parser)
	defer p.parsers.Put(parser)
	return parser.Parse(page)
}

// job is one reading to make.
type job struct {
	replica, url string
	pages        *pages
}

// read makes readings and waits for them, and for those of the same replicas that go on already.
func (s *Scraper) read(ctx context.Context, jobs []job) {
	var running sync.WaitGroup
	defer running.Wait()
	s.start(ctx, &running, jobs)
}

// start starts readings, as many at once as may be.
func (s *Scraper) start(ctx context.Context, running *sync.WaitGroup, jobs []job) {
	for _, j := range jobs {
		select {
		case <-ctx.Done():
			return
		case s.slots <- struct{}{}:
		}
		running.Go(func() {
			defer func() { <-s.slots }()
			s.one(ctx, j)
		})
	}
}

// one makes one reading and remembers what came of it, or waits for the one that goes on.
func (s *Scraper) one(ctx context.Context, j job) {
	s.mu.Lock()
	if other := s.busy[j.replica]; other != nil {
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
		return
	}
	done := make(chan struct{})
	defer close(done)
	s.busy[j.replica] = done
	s.mu.Unlock()
	sample, err := s.fetch(ctx, j)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, j.replica)
	switch {
	case err == nil:
		s.peaks.Observe(j.replica, s.cfg.Now(), sample)
		if s.faults[j.replica] != "" {
			s.cfg.Logger.Info("reading an engine's metrics again", "replica", j.replica)
		}
		delete(s.faults, j.replica)
	case ctx.Err() == nil:
		if s.faults[j.replica] == "" {
			s.cfg.Logger.Warn("cannot read an engine's metrics: its load is unknown", "replica", j.replica, "url", j.url, "error", err)
		}
		s.faults[j.replica] = err.Error()
	}
}

// accept is what is asked for: the text format, and not OpenMetrics or protobuf.
const accept = "text/plain;version=0.0.4;q=1,*/*;q=0.1"

func (s *Scraper) fetch(ctx context.Context, j job) (enginemetrics.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		return enginemetrics.Sample{}, fmt.Errorf("read metrics: %w", err)
	}
	req.Header.Set("Accept", accept)
	resp, err := s.client.Do(req)
	if err != nil {
		return enginemetrics.Sample{}, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return enginemetrics.Sample{}, fmt.Errorf("read metrics: %s responded %s: must be 200 OK", j.url, resp.Status)
	}
	buf, _ := s.buffer.Get().(*bytes.Buffer)
	if buf == nil {
		buf = &bytes.Buffer{}
	}
	defer s.buffer.Put(buf)
	buf.Reset()
	if _, err := buf.ReadFrom(io.LimitReader(resp.Body, enginemetrics.MaxBytes+1)); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no complete response within %s", s.cfg.Timeout)
		}
		return enginemetrics.Sample{}, fmt.Errorf("read metrics: %s: %w", j.url, err)
	}
	sample, err := j.pages.parse(buf.Bytes())
	if err != nil {
		return enginemetrics.Sample{}, fmt.Errorf("read metrics: %s: %w", j.url, err)
	}
	return sample, nil
}

// idle is how long ago a time was by the clock that says more; none where it lies ahead.
func idle(now, then time.Time) time.Duration {
	return max(0, now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
