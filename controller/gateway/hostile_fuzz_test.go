package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
)

// FuzzRequest sends what it likes over a connection: see lane.send.
func FuzzRequest(f *testing.F) {
	l := newLane(f, 500*time.Millisecond)
	for _, s := range l.seeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) { l.send(t, sent) })
}

// TestRandomRequests sends damaged and spliced requests: see lane.send.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	lanes, each := 4, 250
	if long.Enabled() && !long.Race {
		lanes, each = 64, 15_700 // a million
	}
	var running sync.WaitGroup
	var passed atomic.Int64
	for i := range lanes {
		l := newLane(t, 100*time.Millisecond)
		running.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range each {
				if passed.Add(int64(l.send(t, damaged(random, l.seeds())))); t.Failed() {
					return
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d connections, %d requests at the engine", lanes*each, passed.Load())
	require.Greater(t, passed.Load(), int64(lanes*each/50), "hardly a request gets through: this shows little")
}

// damaged makes bytes for a connection out of the seeds: some behind each other, with a few faults.
func damaged(random *rand.Rand, seeds []string) []byte {
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	b := []byte(pick(seeds))
	for range random.IntN(3) {
		b = append(b, pick(seeds)...)
	}
	for range random.IntN(4) {
		at := random.IntN(len(b) + 1)
		end := at + random.IntN(min(len(b)-at, 20)+1)
		switch random.IntN(4) {
		case 0: // something goes
			b = slices.Delete(b, at, end)
		case 1: // something comes twice
			b = slices.Insert(b, at, b[at:end]...)
		case 2:
			b = slices.Insert(b, at, []byte(pick(fragments))...)
		default:
			if at < len(b) {
				b[at] = byte(random.IntN(256))
			}
		}
	}
	return b
}

// fragments are what the framing of a request is made of, and what some readers take for it.
var fragments = []string{
	"\r\n", "\n", "\r", "\r\n\r\n", " ", "\t", ":", "\x00", "\v", ",", "0", "13", "-1", "+13", "0xd", "18446744073709551629",
	"Content-Length: 13\r\n", "Content-Length: 0\r\n", "content-length:5\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: identity\r\n",
	"d\r\n", "0\r\n\r\n", ";a=b", "Connection: close\r\n", "Connection: keep-alive\r\n", "Expect: 100-continue\r\n", "Host: y\r\n", "Trailer: X\r\n",
	"HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "GET ", "POST ", chat, plain, start, hidden, chunks,
}

// lane is a gateway with one engine, for one connection at a time.
type lane struct {
	wire   *wire
	engine replica.Engine
	addr   string
	log    watchedLog
}

// newLane starts a lane. A connection over which nothing more comes is closed after patience.
func newLane(t testing.TB, patience time.Duration) *lane {
	t.Helper()
	l := &lane{}
	l.wire, l.engine = newWire(t, "a")
	l.addr = fuzzGateway(t, func(c *gateway.Config) {
		// A connection is over soon after what was sent.
		c.Timeouts.Header, c.Timeouts.Body, c.Timeouts.KeepAlive = patience, patience, 5*time.Millisecond
		c.Logger = hclog.New(&hclog.LoggerOptions{Output: &l.log, Level: hclog.Warn})
		c.Watcher = fixed{l.engine}
	})
	return l
}

// proper is a request that must pass.
const proper = start + length + plain

func (l *lane) seeds() []string {
	out := []string{
		proper, proper + proper, start, "\r\n" + proper + "\r\n" + hidden, start + "Content-Length: 14\r\n\r\n" + plain,
		start + "Content-Length: 12\r\n\r\n" + plain, start + "Connection: close\r\n" + length + plain + hidden,
		"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n" + plain + proper,
	}
	for _, s := range smugglings(l.engine) {
		out = append(out, s.sent)
	}
	return out
}

// send sends bytes over a connection. The gateway answers or closes, does not panic, takes no engine for
// broken, and passes on what net/http reads: see lane.compare. It returns how many requests it passed on.
func (l *lane) send(t *testing.T, sent []byte) int {
	t.Helper()
	want := readAll(sent)
	for try := 1; ; try++ {
		seen, slow := l.try(t, sent, want)
		if !slow || t.Failed() {
			return seen
		}
		// A pause of the machine may outlast the timeouts of the gateway.
		require.Less(t, try, 6, "a request is lost: %q", sent)
	}
}

func (l *lane) try(t *testing.T, sent []byte, want []reading) (passed int, slow bool) {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, _ = c.Write(sent) // it may be refused before its end
	var got bytes.Buffer
	_, err = io.Copy(&got, c) // ends when the gateway closes the connection
	var failed net.Error
	require.False(t, errorsAs(err, &failed) && failed.Timeout(), "the connection stays open: %q", sent)
	seen := l.wire.take(t, sent)
	require.Empty(t, l.log.take(), "%q", sent)
	return len(seen), compare(t, sent, want, got.Bytes(), seen)
}

// compare checks the answers and what the engine saw, one request after another. The engine saw those that
// have its answer and no others, each with exactly the body that net/http reads. A request that is proper is
// answered by the engine, and its connection goes on. slow: the connection ended before a request that
// net/http reads was answered, and no answer has said that it would.
func compare(t *testing.T, sent []byte, want []reading, got []byte, seen []wireRequest) (slow bool) {
	t.Helper()
	in := bufio.NewReader(bytes.NewReader(got))
	for i := 0; ; {
		_, err := in.Peek(1)
		if err != nil {
			require.Empty(t, seen, "the engine saw a request without an answer: %q", sent)
			return i < len(want)
		}
		q := reading{}
		if i < len(want) {
			q = want[i]
		}
		resp, err := http.ReadResponse(in, q.r)
		require.NoError(t, err, "%q answered with %q", sent, got)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err, "%q answered with %q", sent, got)
		if resp.StatusCode < 200 {
			continue
		}
		i++
		if resp.StatusCode == http.StatusOK && string(body) == "{}" {
			require.NotEmpty(t, seen, "an answer of the engine to a request that it did not get: %q", sent)
			require.True(t, q.r != nil && q.r.Method == http.MethodPost, "the engine got what is no POST: %q", sent)
			require.Equal(t, q.body, seen[0].body, "the engine got another body: %q", sent)
			// A query that is empty is none.
			require.Equal(t, strings.TrimSuffix(q.r.URL.RequestURI(), "?"), seen[0].r.RequestURI, "%q", sent)
			seen = seen[1:]
		} else if resp.StatusCode == http.StatusRequestTimeout && i <= len(want) {
			return true
		} else {
			require.False(t, q.proper, "a proper request was answered with %s: %q", resp.Status, sent)
		}
		if i > len(want) || resp.Close {
			require.False(t, q.proper && q.keeps, "the connection ended at a proper request: %q", sent)
			rest, _ := io.ReadAll(in)
			require.Empty(t, rest, "an answer behind the last one: %q", sent)
			require.Empty(t, seen, "the engine saw a request without an answer: %q", sent)
			return false
		}
	}
}

// reading is a request as net/http reads it.
type reading struct {
	r    *http.Request
	body string
	// proper: the gateway has no reason to refuse it. Beside what net/http's parser reads it may refuse what
	// net/http's server does (a Host that is missing, duplicate or invalid, a name with a space, bytes that are not
	// printable, another version of HTTP, another expectation), and bodies that name no model.
	proper bool
	// keeps: the next request on the connection must be served. It need not be where a server in front may
	// see another end of this one (chunks, HTTP/1.0), nor where the client wants the connection closed.
	keeps bool
}

// readAll reads requests up to the first that net/http cannot read to its end: the gateway must not pass
// that one on, nor what follows.
func readAll(sent []byte) (out []reading) {
	src := bytes.NewReader(sent)
	in := bufio.NewReader(src)
	at := func() int { return len(sent) - src.Len() - in.Buffered() }
	for {
		if n := len(out); n > 0 && out[n-1].r.Method == http.MethodPost { // as net/http's server
			next, _ := in.Peek(4)
			_, _ = in.Discard(len(next) - len(bytes.TrimLeft(next, "\r\n")))
		}
		begin := at()
		r, err := http.ReadRequest(in)
		if err != nil {
			return out
		}
		head := string(sent[begin:at()])
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return out
		}
		q := reading{r: r, body: string(body)}
		expect := r.Header["Expect"]
		q.proper = r.Method == http.MethodPost && r.URL.Path == chat && q.body == plain && r.Proto == "HTTP/1.1" &&
			len(hostLine.FindAllString(head, -1)) == 1 && (r.Host == "x" || r.Host == "y") && !unprintable.MatchString(head) &&
			(len(expect) == 0 || len(expect) == 1 && expect[0] == "100-continue")
		for name := range r.Header {
			q.proper = q.proper && fieldName.MatchString(name)
		}
		q.keeps = !closes.MatchString(strings.Join(r.Header["Connection"], ",")) && len(r.TransferEncoding) == 0
		out = append(out, q)
	}
}

var (
	closes      = regexp.MustCompile(`(?i)close`) // also "close" in what is no list of tokens
	hostLine    = regexp.MustCompile(`(?i)\nhost:`)
	fieldName   = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")
	unprintable = regexp.MustCompile(`[^\t\r\n -~]|\r[^\n]`)
)

// fuzzGateway starts a gateway, which is ready, and returns its address.
func fuzzGateway(f testing.TB, change func(*gateway.Config)) string {
	f.Helper()
	cfg := gateway.DefaultConfig()
	cfg.Listen, cfg.OperatorListen = "127.0.0.1:0", "127.0.0.1:0"
	listening := make(chan string, 1)
	cfg.OnListen = func(a, _ net.Addr) { listening <- a.String() }
	change(&cfg)
	g, err := gateway.New(cfg)
	require.NoError(f, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	f.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	select {
	case addr := <-listening:
		return addr
	case err := <-done:
		done <- err
		f.Fatalf("the gateway did not start: %v", err)
		return ""
	}
}

// watchedLog keeps the warnings that bytes of a client must not cause.
type watchedLog struct {
	mu    sync.Mutex
	lines []string
}

// Write looks at a line of the log.
func (l *watchedLog) Write(line []byte) (int, error) {
	for _, bad := range []string{"panic", "engine failed", "cannot connect to the engine"} {
		if bytes.Contains(line, []byte(bad)) {
			l.mu.Lock()
			l.lines = append(l.lines, string(line))
			l.mu.Unlock()
		}
	}
	return len(line), nil
}

func (l *watchedLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.lines
	l.lines = nil
	return out
}
