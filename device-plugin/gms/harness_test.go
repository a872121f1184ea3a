package gms_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
	"remuda/internal/testkit/gmstest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

const (
	uuid    = "GPU-1"
	weights = "weights"
	kvCache = "kv_cache"
	// own is how many units have a socket of their own.
	own = 2
	// layoutRecord is the keeper's record of the weights.
	layoutRecord = "GPU-1/weights"
)

// service is a server that runs.
type service struct {
	t       *testing.T
	cfg     gms.Config
	gpu     *gmstest.Backend
	server  *gms.Server
	running *gmsserve.Service
	metrics *prometheus.Registry
}

// config is a service with one GPU, and short waits.
func config(t *testing.T) gms.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir = dir
	cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(64 * gmstest.Page)}}
	cfg.OOMRetry = 5 * time.Millisecond
	if testing.Verbose() {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	}
	return cfg
}

// start runs a service, which ends with the test.
func start(t *testing.T, cfg gms.Config) *service {
	t.Helper()
	s := &service{t: t, cfg: cfg, gpu: cfg.GPUs[0].Backend.(*gmstest.Backend), metrics: prometheus.NewRegistry()}
	cfg.Metrics = s.metrics
	if k, ok := cfg.Keeper.(*gmstest.Keeper); ok {
		var err error
		cfg.Kept, err = k.Records()
		require.NoError(t, err)
	}
	s.running = gmsserve.Start(t, cfg)
	s.server = s.running.Server
	return s
}

// end stops the service in order.
func (s *service) end() {
	s.t.Helper()
	s.running.Stop()
}

// wait returns how the service has ended.
func (s *service) wait() error { return s.running.Wait() }

// again ends the service and starts another one in its place.
func (s *service) again() *service {
	s.t.Helper()
	s.end()
	return start(s.t, s.cfg)
}

// metric is the sum of a metric's series that have the labels; 0 without any.
func (s *service) metric(name string, labels map[string]string) float64 {
	s.t.Helper()
	families, err := s.metrics.Gather()
	require.NoError(s.t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			for k, v := range labels {
				if got[k] != v {
					continue series
				}
			}
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

// client is one connection.
type client struct {
	t *testing.T
	*wire.Conn
	raw *net.UnixConn
}

// path is the socket on which a connection of a tag begins.
func (s *service) path(tag string) string {
	switch tag {
	case weights:
		return gms.SocketPath(s.cfg.SocketDir, uuid)
	case kvCache:
		return filepath.Join(s.cfg.SocketDir, "gms_"+uuid+"_kv_cache.sock")
	}
	return gms.NodeSocketPath(s.cfg.SocketDir)
}

func (s *service) dial(tag string) *client {
	s.t.Helper()
	c := dialPath(s.t, s.path(tag))
	if tag != weights && tag != kvCache {
		ask[*wire.OpenUnitResponse](c, &wire.OpenUnitRequest{GPU: uuid, Tag: tag})
	}
	return c
}

func dialPath(t *testing.T, path string) *client {
	t.Helper()
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	c := wire.NewConn(raw)
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, raw}
}

func ptr[T any](v T) *T { return &v }

// post sends a request.
func (c *client) post(m wire.Message) *client {
	c.t.Helper()
	require.NoError(c.t, c.Write(m, -1))
	return c
}

// next reads an answer.
func (c *client) next() wire.Message {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
	m, _, err := c.Read(0, false)
	require.NoError(c.t, err)
	return m
}

// silent says that nothing comes for a while.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(d)))
	m, _, err := c.Read(0, false)
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded, "%v", m)
}

// closed waits until the server has closed the connection.
func (c *client) closed() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
	m, _, err := c.Read(0, false)
	require.Error(c.t, err, "%v", m)
	require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded, "the connection is open")
}

// ask sends a request and reads its answer, of the type that belongs to it.
func ask[T wire.Message](c *client, m wire.Message) T {
	c.t.Helper()
	got := c.post(m).next()
	answer, ok := got.(T)
	require.True(c.t, ok, "answer to %s: %#v", m.MessageType(), got)
	return answer
}

// refused sends a request that must get an error_response.
func (c *client) refused(m wire.Message) *wire.ErrorResponse {
	c.t.Helper()
	return ask[*wire.ErrorResponse](c, m)
}

// hello asks for the lock and does not wait.
func (s *service) hello(tag string, h wire.HandshakeRequest) *client {
	s.t.Helper()
	return s.dial(tag).post(&h)
}

// granted reads a grant.
func (c *client) granted(mode wire.LockType) *wire.HandshakeResponse {
	c.t.Helper()
	m := c.next()
	h, ok := m.(*wire.HandshakeResponse)
	require.True(c.t, ok && h.Success, "%#v", m)
	require.Equal(c.t, mode, h.GrantedLockType)
	require.Equal(c.t, mode == wire.RO, h.Committed)
	return h
}

// denied reads a refusal; the connection is closed after it.
func (c *client) denied(code string) *wire.HandshakeResponse {
	c.t.Helper()
	m := c.next()
	h, ok := m.(*wire.HandshakeResponse)
	require.True(c.t, ok && !h.Success, "%#v", m)
	require.Equal(c.t, code, h.Code)
	require.NotEmpty(c.t, h.Error)
	require.Empty(c.t, h.GrantedLockType)
	c.closed()
	return h
}

// open opens a session.
func (s *service) open(tag string, mode wire.LockType) *client {
	s.t.Helper()
	c := s.hello(tag, wire.HandshakeRequest{LockType: mode})
	c.granted(mode)
	return c
}

func (c *client) allocate(pages int64, tag string) *wire.AllocateResponse {
	c.t.Helper()
	return ask[*wire.AllocateResponse](c, &wire.AllocateRequest{Size: pages * gmstest.Page, Tag: tag})
}

func (c *client) commit() {
	c.t.Helper()
	require.True(c.t, ask[*wire.CommitResponse](c, &wire.CommitRequest{}).Success)
	c.closed()
}

// export asks for a descriptor, which the caller closes.
func (c *client) export(id string) int {
	c.t.Helper()
	c.post(&wire.ExportAllocationRequest{AllocationID: id})
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
	m, fd, err := c.Read(0, true)
	require.NoError(c.t, err)
	require.IsType(c.t, &wire.ExportAllocationResponse{}, m)
	require.GreaterOrEqual(c.t, fd, 0)
	return fd
}

// commitOne commits a layout of one allocation with bytes and metadata.
func (s *service) commitOne(tag, text string) (id, hash string) {
	s.t.Helper()
	w := s.open(tag, wire.RW)
	a := w.allocate(2, "x")
	fd := w.export(a.AllocationID)
	_, err := unix.Pwrite(fd, []byte(text), 10)
	require.NoError(s.t, err)
	require.NoError(s.t, unix.Close(fd))
	ask[*wire.MetadataPutResponse](w, &wire.MetadataPutRequest{Key: "k", AllocationID: a.AllocationID, OffsetBytes: 7, Value: []byte(text)})
	w.commit()
	return a.AllocationID, s.state(tag).MemoryLayoutHash
}

// holds checks what commitOne has made.
func (s *service) holds(tag, id, text string) {
	s.t.Helper()
	r := s.open(tag, wire.RO)
	defer r.Close()
	fd := r.export(id)
	defer func() { _ = unix.Close(fd) }()
	got := make([]byte, len(text))
	_, err := unix.Pread(fd, got, 10)
	require.NoError(s.t, err)
	require.Equal(s.t, text, string(got))
	m := ask[*wire.MetadataGetResponse](r, &wire.MetadataGetRequest{Key: "k"})
	require.Equal(s.t, &wire.MetadataGetResponse{Found: true, AllocationID: id, OffsetBytes: 7, Value: []byte(text)}, m)
}

func (s *service) state(tag string) *wire.GetRuntimeStateResponse {
	s.t.Helper()
	c := s.dial(tag)
	defer c.Close()
	return ask[*wire.GetRuntimeStateResponse](c, &wire.GetRuntimeStateRequest{})
}

func (s *service) events(tag string) []wire.Event {
	s.t.Helper()
	c := s.dial(tag)
	defer c.Close()
	return ask[*wire.GetEventHistoryResponse](c, &wire.GetEventHistoryRequest{}).Events
}

// eventually polls.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			require.Fail(t, "waited in vain", "%s", what)
		}
	}
}

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	return len(all)
}
