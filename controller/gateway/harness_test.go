package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/testkit/parallel"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(benchRole); role != "" {
		os.Exit(runBenchRole(role))
	}
	// Not parallel are those tests that measure this process, as they look for what is left
	// in it, and those that keep all processors busy.
	parallel.Raise("12")
	gateway.LongGrace()
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of these tests; none is expected to come near it.
const patience = 3 * time.Minute

// feed is a Watcher that says what a test tells it to say.
type feed struct {
	lists chan list
	// place is called with the engines of a list before the gateway gets it.
	place func(...replica.Engine)
}

type list struct {
	engines     []replica.Engine
	afterOutage bool
	lost        bool // Consul stopped answering
	lie         bool // the controller of the test does not place these engines
	taken       chan struct{}
}

func (f *feed) Watch(ctx context.Context, update func([]replica.Engine, bool), lost func()) error {
	for {
		select {
		case l := <-f.lists:
			if l.lost {
				lost()
			} else {
				if f.place != nil && !l.lie {
					f.place(l.engines...)
				}
				update(l.engines, l.afterOutage)
			}
			close(l.taken)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fixture is a running gateway.
type fixture struct {
	t    *testing.T
	url  string
	addr string
	// operators is the URL of the operators' port.
	operators string
	feed      *feed
	stop      context.CancelFunc
	done      chan error
	client    *http.Client
}

// newGateway starts a gateway with short timeouts. The test ends it.
func newGateway(t *testing.T, change ...func(*gateway.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, feed: &feed{lists: make(chan list)}, done: make(chan error, 1)}
	cfg := gateway.DefaultConfig()
	cfg.Listen, cfg.OperatorListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Watcher = f.feed
	cfg.Timeouts.Drain = patience
	// Each fault is seen as it is, and who waits in vain does not wait for long, but longer than a slow machine
	// needs to free the slot of a request that has its answer.
	cfg.Retries.Attempts = 1
	cfg.Queue.Wait, cfg.Queue.Restart = time.Second, time.Second
	cfg.Queue.CommentAfter = time.Hour // however slow the machine is
	listening := make(chan net.Addr, 2)
	cfg.OnListen = func(clients, operators net.Addr) { listening <- clients; listening <- operators }
	for _, c := range change {
		c(&cfg)
	}
	g, err := gateway.New(cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() { f.done <- g.Run(ctx) }()
	select {
	case a := <-listening:
		f.addr = a.String()
		f.url = "http://" + f.addr
		f.operators = "http://" + (<-listening).String()
	case err := <-f.done:
		t.Fatalf("the gateway did not start: %v", err)
	}
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}
	f.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		f.wait()
	})
	return f
}

// wait stops the gateway and waits until it is gone.
func (f *fixture) wait() {
	f.t.Helper()
	f.stop()
	select {
	case err := <-f.done:
		require.NoError(f.t, err)
		f.done <- nil
	case <-time.After(patience):
		f.t.Fatal("the gateway does not stop")
	}
}

// in is the same gateway in a subtest.
func (f *fixture) in(t *testing.T) *fixture {
	sub := *f
	sub.t = t
	return &sub
}

func (f *fixture) engines(engines ...replica.Engine) { f.tell(false, engines...) }

func (f *fixture) tell(afterOutage bool, engines ...replica.Engine) {
	f.t.Helper()
	f.feed.say(list{engines: engines, afterOutage: afterOutage})
}

func (f *feed) say(l list) {
	l.taken = make(chan struct{})
	f.lists <- l
	<-l.taken
}

// engineAt describes a passing engine of model "m" with an address.
func engineAt(id, addr string) replica.Engine {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return replica.Engine{
		Name: replica.Name{Model: "m", Variant: "v", ID: id}, Role: replica.RolePrimary,
		Address: host, Port: n, Slots: 4, Passing: true,
	}
}

// newEngine starts an HTTP engine.
func newEngine(t *testing.T, id string, h http.HandlerFunc) replica.Engine {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return engineAt(id, s.Listener.Addr().String())
}

// newRawEngine starts an engine that answers each connection's first request
// by calling answer, which has read the header, and then closes it.
func newRawEngine(t *testing.T, id string, answer func(net.Conn)) replica.Engine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				req, err := http.ReadRequest(newReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				answer(c)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return engineAt(id, l.Addr().String())
}

// deadEngine has an address that refuses connections until the test ends: its
// port is bound, so nobody else gets it, but nobody listens.
func deadEngine(t *testing.T, id string) replica.Engine {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	bound, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return engineAt(id, fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port))
}

// says is an engine that answers every request with the same JSON.
func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"said":%q}`, text)
	}
}

const chat = "/v1/chat/completions"

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// do is also for other goroutines than the test's: without an answer the test has failed
// and goes on.
func (f *fixture) do(method, path, body string, header ...string) answer {
	f.t.Helper()
	return f.ask(f.url, method, path, body, header...)
}

// ask is do at one of the gateway's ports.
func (f *fixture) ask(at, method, path, body string, header ...string) answer {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, at+path, strings.NewReader(body))
	require.NoError(f.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Errorf("no answer: %v", err)
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

func (f *fixture) post(body string, header ...string) answer {
	f.t.Helper()
	return f.do(http.MethodPost, chat, body, append(header, "Content-Type", "application/json")...)
}

// patient lets requests wait, and tries them again, as by default.
func patient(c *gateway.Config) {
	d := gateway.DefaultConfig()
	c.Retries = d.Retries
	c.Queue.Wait, c.Queue.Restart = patience, patience
}

// apiError is an error in OpenAI's shape.
type apiError struct {
	Message, Type string
	Param, Code   *string
}

// requireError checks that a whole answer is an error in OpenAI's shape.
func (a answer) requireError(t *testing.T, status int, code string) apiError {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.NoError(t, a.err)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.NotEmpty(t, a.header.Get("X-Request-Id"))
	return requireErrorBody(t, a.body, code)
}

func requireErrorBody(t *testing.T, body, code string) apiError {
	t.Helper()
	var shape map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &shape), body)
	require.Len(t, shape, 1)
	for _, key := range []string{"message", "type", "param", "code"} {
		require.Contains(t, shape["error"], key)
	}
	var v struct{ Error apiError }
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	require.NotEmpty(t, v.Error.Message)
	require.NotEmpty(t, v.Error.Type)
	require.NotNil(t, v.Error.Code)
	require.Equal(t, code, *v.Error.Code, v.Error.Message)
	return v.Error
}

// metric sums the samples of a counter, gauge or histogram count that have the
// labels.
func (f *fixture) metric(name string, labels ...string) float64 {
	f.t.Helper()
	a := f.ask(f.operators, http.MethodGet, "/metrics", "")
	require.Equal(f.t, http.StatusOK, a.status)
	var wanted strings.Builder // to read all would take much longer
	for line := range strings.Lines(a.body) {
		if strings.HasPrefix(strings.TrimPrefix(line, "# TYPE "), name) {
			wanted.WriteString(line)
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(wanted.String()))
	require.NoError(f.t, err)
	var sum float64
samples:
	for _, m := range families[name].GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		for i := 0; i < len(labels); i += 2 {
			if have[labels[i]] != labels[i+1] {
				continue samples
			}
		}
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// counted waits until so many requests were counted in requests_total: a client that leaves
// may notice that before the gateway has counted it.
func (f *fixture) counted(n int, labels ...string) {
	f.t.Helper()
	var have float64
	eventually(f.t, fmt.Sprintf("%d requests of %v are counted", n, labels), func() bool {
		have = f.metric("remuda_gateway_requests_total", labels...)
		return have >= float64(n)
	})
	require.Equal(f.t, float64(n), have)
}

// eventually polls a condition, in the goroutine of the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 16*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain was waited for this: %s", what)
		}
		time.Sleep(pause)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count descriptors: %v", err)
	}
	return len(entries)
}
