// Package gmsserve runs a GPU memory service in a test's process. It is not in gmstest
// because gms's own internal tests stand on that one.
package gmsserve

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
)

// patience is how long a service may take to be ready, or to end.
const patience = 20 * time.Second

// Service is a service that was ready when Start returned.
type Service struct {
	// Server is what runs.
	Server *gms.Server

	t      testing.TB
	cancel context.CancelFunc
	// done is closed once Run has returned; err is what it returned, and is written before.
	done chan struct{}
	err  error
	// looked tells that somebody knows how it ended.
	looked atomic.Bool
}

// Start runs a service and returns once it is ready. It ends with the test at the latest,
// and has to end without an error then, unless the test has called Wait.
func Start(t testing.TB, cfg gms.Config) *Service {
	t.Helper()
	ready, told := make(chan struct{}), cfg.OnReady
	cfg.OnReady = func() {
		close(ready)
		if told != nil {
			told()
		}
	}
	server, err := gms.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{Server: server, t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = server.Run(ctx)
	}()
	t.Cleanup(func() {
		if !s.looked.Load() {
			s.Stop()
		}
	})
	select {
	case <-ready:
	case <-s.done:
		s.looked.Store(true)
		require.NoError(t, s.err)
		require.Fail(t, "the service has ended")
	case <-time.After(patience):
		require.Fail(t, "the service is not ready")
	}
	return s
}

// Stop ends the service in order. It may be called again.
func (s *Service) Stop() {
	s.t.Helper()
	s.cancel()
	assert.NoError(s.t, s.Wait())
}

// Wait returns how the service has ended.
func (s *Service) Wait() error {
	s.looked.Store(true)
	select {
	case <-s.done:
		return s.err
	case <-time.After(patience):
		return errors.New("the service does not end")
	}
}

// maxAnswer is more bytes than a service's history has.
const maxAnswer = 1 << 20

// Events returns the last events of the service at the socket, the oldest first. It takes
// no lock.
func Events(t testing.TB, socket string) []wire.Event {
	t.Helper()
	conn, err := wire.Dial(socket)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(t, conn.Write(&wire.GetEventHistoryRequest{}, -1))
	m, _, err := conn.Read(maxAnswer, false)
	require.NoError(t, err)
	require.IsType(t, &wire.GetEventHistoryResponse{}, m)
	return m.(*wire.GetEventHistoryResponse).Events
}
