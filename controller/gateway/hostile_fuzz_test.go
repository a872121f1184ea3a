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
	"strconv"
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
	lost   int // proper requests in succession that did not pass
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
// broken, and passes on no more requests than a strict reader finds. It returns how many it passed on.
func (l *lane) send(t *testing.T, sent []byte) int {
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
	require.True(t, got.Len() == 0 || bytes.HasPrefix(got.Bytes(), []byte("HTTP/1.")), "%q", got.String())
	require.LessOrEqual(t, len(seen), mayPass(string(sent)), "more requests than there are: %q", sent)
	require.GreaterOrEqual(t, len(okLine.FindAll(got.Bytes(), -1)), len(seen), "a request without an answer: %q", sent)
	for _, one := range seen {
		if !bytes.Contains(bytes.ToLower(sent), []byte("transfer-encoding")) {
			require.Contains(t, string(sent), one.body, "the engine got a body that was not sent: %q", sent)
		}
	}
	if string(sent) == proper {
		if l.lost++; len(seen) == 1 {
			l.lost = 0
		}
		require.Less(t, l.lost, 3, "proper requests do not pass") // a pause of the machine may outlast the header timeout
	}
	return len(seen)
}

var okLine = regexp.MustCompile(`HTTP/1\.[01] 200 OK\r\n`)

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

// mayPass counts the POSTs in s that have all of their body. Behind the first whose end
// is not beyond doubt there are none: with chunks in HTTP/1.0, with chunks that net/http cannot read,
// with another length than a number.
func mayPass(s string) int {
	n := 0
	for {
		s = strings.TrimLeft(s, "\r\n")
		head, rest, ok := cutHead(s)
		if !ok {
			return n
		}
		post := 0
		if strings.HasPrefix(head[0], "POST ") {
			post = 1
		}
		plain, chunked, size := clearVersion.MatchString(head[0]), false, uint64(0)
		old := strings.HasSuffix(head[0], " HTTP/1.0")
		lengths := map[string]bool{}
		for _, field := range head[1:] {
			name, value, _ := strings.Cut(field, ":")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "transfer-encoding":
				chunked = true
			case "content-length":
				value = strings.Trim(value, " \t")
				lengths[value] = true
				var err error
				if size, err = strconv.ParseUint(value, 10, 63); err != nil {
					plain = false
				}
			}
		}
		switch {
		case !plain || old && chunked || len(lengths) > 1:
			return n + post
		case chunked:
			in := bufio.NewReader(strings.NewReader(s))
			r, err := http.ReadRequest(in)
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			if err != nil {
				return n + post
			}
			n += post
			behind, _ := io.ReadAll(in)
			s = string(behind)
			continue
		case size > uint64(len(rest)):
			return n
		}
		n += post
		s = rest[size:]
	}
}

var clearVersion = regexp.MustCompile(` HTTP/1\.[0-9]+$`)

// cutHead cuts the lines of a header off, folded ones put together.
func cutHead(s string) (lines []string, rest string, ok bool) {
	for {
		line, after, found := strings.Cut(s, "\n")
		if !found {
			return nil, "", false
		}
		line, s = strings.TrimSuffix(line, "\r"), after
		switch {
		case line == "":
			return lines, s, len(lines) > 0
		case len(lines) > 1 && (line[0] == ' ' || line[0] == '\t'):
			lines[len(lines)-1] += " " + strings.Trim(line, " \t")
		default:
			lines = append(lines, line)
		}
	}
}
