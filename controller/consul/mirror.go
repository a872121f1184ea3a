package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
)

// MirrorConfig says where a Mirror writes.
type MirrorConfig struct {
	Address Address
	// Name is the session's name, for people. Required.
	Name string
	// TTL is how long the keys outlive a mirror that died; Consul takes 10s to
	// 24h, and up to twice as long to act on it.
	TTL time.Duration
	// Repeat is how often everything is looked at again, because somebody may
	// have changed it.
	Repeat time.Duration
	Logger hclog.Logger
}

// DefaultMirrorConfig has the reasons beside the numbers.
func DefaultMirrorConfig() MirrorConfig {
	return MirrorConfig{
		TTL:    15 * time.Second, // a few renewals may be lost
		Repeat: 5 * time.Second,  // renews the session three times per TTL
		Logger: hclog.NewNullLogger(),
	}
}

func (c MirrorConfig) validate() error {
	var errs []error
	if c.Name == "" {
		errs = append(errs, errors.New("name must not be empty"))
	}
	if c.TTL < 10*time.Second || c.TTL > 24*time.Hour {
		errs = append(errs, fmt.Errorf("ttl is %s: must be 10s to 24h (Consul's limits)", c.TTL))
	}
	if c.Repeat <= 0 || c.Repeat > c.TTL/2 {
		errs = append(errs, fmt.Errorf("repeat is %s: must be more than 0 and at most half the ttl", c.Repeat))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("logger must be set"))
	}
	return errors.Join(errs...)
}

// Mirror keeps keys in Consul's KV store in step with what it is told, under a
// session of its own: when it ends, or dies, the keys go. It never waits for
// Consul where it is told something, and nothing depends on Consul's answers.
type Mirror struct {
	cfg       MirrorConfig
	client    *api.Client
	transport *http.Transport

	mu      sync.Mutex
	want    map[string]string
	changed chan struct{}
}

// NewMirror validates cfg; it talks to nobody.
func NewMirror(cfg MirrorConfig) (*Mirror, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("consul mirror: %w", err)
	}
	client, transport, err := newClient(cfg.Address)
	if err != nil {
		return nil, err
	}
	return &Mirror{cfg: cfg, client: client, transport: transport, changed: make(chan struct{}, 1)}, nil
}

// Set says what the keys are from now on. It takes its own copy.
func (m *Mirror) Set(keys map[string]string) {
	m.mu.Lock()
	same := maps.Equal(m.want, keys)
	m.want = maps.Clone(keys)
	m.mu.Unlock()
	if same {
		return
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Run keeps the keys in step until ctx ends, and then removes them. It never
// gives up; what fails is logged once and tried again.
func (m *Mirror) Run(ctx context.Context) {
	defer m.transport.CloseIdleConnections()
	s := &mirrorSession{m: m, have: map[string]string{}}
	failing := false
	for retry := minRetry; ; {
		err := s.sync(ctx)
		if ctx.Err() != nil {
			s.end(ctx)
			return
		}
		wait := m.cfg.Repeat
		if err != nil {
			wait, retry = retry, min(2*retry, maxRetry)
		} else {
			retry = minRetry
		}
		if (err != nil) != failing {
			failing = err != nil
			if failing {
				m.cfg.Logger.Warn("cannot mirror to Consul, retrying: nothing depends on the mirror", "error", err)
			} else {
				m.cfg.Logger.Info("mirroring to Consul", "keys", len(s.have))
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.changed:
		}
		timer.Stop()
	}
}

// mirrorSession is what Run knows to be in Consul.
type mirrorSession struct {
	m       *Mirror
	id      string
	renewed time.Time
	have    map[string]string
}

// sync makes Consul's keys what they should be.
func (s *mirrorSession) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	write := (&api.WriteOptions{}).WithContext(ctx)
	if err := s.session(write); err != nil {
		return err
	}
	s.m.mu.Lock()
	want := s.m.want
	s.m.mu.Unlock()
	kv := s.m.client.KV()
	for key, value := range want {
		if s.have[key] == value {
			continue
		}
		held, _, err := kv.Acquire(&api.KVPair{Key: key, Value: []byte(value), Session: s.id}, write)
		if err != nil {
			return fmt.Errorf("write key %s: %w", key, err)
		}
		if !held {
			// The session of a life before this one still has it. The key is
			// ours to tell, whoever wrote it last.
			if _, err := kv.Delete(key, write); err != nil {
				return fmt.Errorf("take over key %s: %w", key, err)
			}
			return fmt.Errorf("key %s was held by another session: taking it over", key)
		}
		s.have[key] = value
	}
	for key := range s.have {
		if _, wanted := want[key]; wanted {
			continue
		}
		if _, err := kv.Delete(key, write); err != nil {
			return fmt.Errorf("delete key %s: %w", key, err)
		}
		delete(s.have, key)
	}
	return nil
}

// session renews the session, or makes one; with a new session nothing is known
// to be in Consul.
func (s *mirrorSession) session(write *api.WriteOptions) error {
	sessions := s.m.client.Session()
	if s.id != "" && time.Since(s.renewed) < s.m.cfg.Repeat/2 {
		return nil
	}
	if s.id != "" {
		entry, _, err := sessions.Renew(s.id, write)
		if err != nil {
			return fmt.Errorf("renew the session: %w", err)
		}
		if entry != nil {
			s.renewed = time.Now()
			return nil
		}
	}
	id, _, err := sessions.CreateNoChecks(&api.SessionEntry{
		Name: s.m.cfg.Name, TTL: s.m.cfg.TTL.String(), Behavior: api.SessionBehaviorDelete, LockDelay: time.Nanosecond,
	}, write)
	if err != nil {
		return fmt.Errorf("create a session: %w", err)
	}
	s.id, s.renewed = id, time.Now()
	clear(s.have)
	return nil
}

// end removes the session and, with it, the keys.
func (s *mirrorSession) end(ctx context.Context) {
	if s.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if _, err := s.m.client.Session().Destroy(s.id, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		s.m.cfg.Logger.Warn("cannot remove the session from Consul: it expires by itself", "ttl", s.m.cfg.TTL, "error", err)
	}
}
