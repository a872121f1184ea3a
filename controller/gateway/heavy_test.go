package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/testkit/long"
)

// heap is what is in use after a collection, pools emptied.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// settles polls until the gateway holds nothing of any request, and no more goroutines,
// descriptors and memory than before.
func (f *fixture) settles(before holdings, slack int64) {
	f.t.Helper()
	eventually(f.t, "no request, body, slot or place in a queue is left", func() bool {
		return f.metric("remuda_gateway_in_flight") == 0 && f.metric("remuda_gateway_queue_length") == 0 && f.metric("remuda_gateway_buffered_bytes") == 0
	})
	var now holdings
	require.Eventually(f.t, func() bool {
		f.client.CloseIdleConnections()
		now = holds(f.t)
		return now.goroutines <= before.goroutines+8 && now.files <= before.files+8 && now.heap <= before.heap+slack
	}, patience, 50*time.Millisecond, "what is left")
	f.t.Logf("before %+v, after %+v", before, now)
}

// holdings are what a leak makes grow.
type holdings struct {
	goroutines, files int
	heap              int64
}

func holds(t *testing.T) holdings {
	t.Helper()
	return holdings{runtime.NumGoroutine(), openFiles(t), heap()}
}

// TestClientsThatLeave: whenever they do, and however, nothing of their requests stays.
func TestClientsThatLeave(t *testing.T) {
	const clients, rounds = 50, 2
	body := fmt.Sprintf(`{"model":"m","stream":%%t,"prompt":"%s"}`, strings.Repeat("x", 30<<10))
	// What a request that is forgotten would hold.
	pad := "X-Pad: " + strings.Repeat("x", 40<<10) + "\r\n"
	cases := []struct {
		name   string
		part   float64 // of the request that is sent
		stream bool
		slots  int
		there  func(f *fixture, at *atomic.Int64) bool // all clients are where they should be
		engine http.HandlerFunc
		read   bool // the client reads before it leaves
	}{
		{name: "in the header", part: .3},
		{name: "in the body", part: .9, there: func(f *fixture, _ *atomic.Int64) bool {
			return f.metric("remuda_gateway_buffered_bytes") >= clients*(30<<10)
		}},
		{name: "in the queue", part: 1, slots: 1, there: func(f *fixture, _ *atomic.Int64) bool {
			return f.metric("remuda_gateway_queue_length") == clients
		}},
		{name: "in the queue, told so", part: 1, slots: 1, stream: true, read: true},
		{name: "before the first byte", part: 1, slots: clients, there: func(_ *fixture, at *atomic.Int64) bool { return at.Load() == clients }},
		{name: "in the stream", part: 1, slots: clients, stream: true, read: true, engine: func(w http.ResponseWriter, _ *http.Request) { sse(w, "data: {}\n\n") }},
		{name: "in a long answer", part: 1, slots: clients, read: true, engine: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":"`+strings.Repeat("x", 100<<10))
			_ = http.NewResponseController(w).Flush()
		}},
	}
	for _, c := range cases {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reset %t", c.name, reset), func(t *testing.T) {
				f := newGateway(t, calm(t), patient, withKey("holder", gateway.DefaultKeyLimit()), func(cfg *gateway.Config) {
					cfg.Queue.CommentAfter, cfg.Timeouts.EngineIdle = time.Millisecond, 500*time.Millisecond
					cfg.Keys.Default.Concurrency = clients // of those without a known key
				})
				var at atomic.Int64
				release := make(chan struct{})
				letGo := sync.OnceFunc(func() { close(release) })
				defer letGo()
				e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					switch {
					case r.Header.Get("X-Holder") != "":
						at.Add(1)
						<-release
						says("held")(w, r)
					case r.Header.Get("X-Pad") == "":
						says("x")(w, r)
					default:
						at.Add(1)
						if c.engine != nil {
							c.engine(w, r)
						}
						<-r.Context().Done()
					}
				})
				if e.Slots = c.slots; c.slots == 0 {
					e.Slots = 1
				}
				f.engines(e)
				require.Equal(t, http.StatusOK, f.post(plain).status) // everything that stays open is open
				before := holds(t)
				held := make(chan answer, 1)
				holders := 0
				if e.Slots == 1 {
					holders = 1
					go func() { held <- f.post(plain, as("holder", "X-Holder", "1")...) }()
					eventually(t, "the only slot is taken", func() bool { return at.Load() == 1 })
				}
				whole := fmt.Sprintf(body, c.stream)
				whole = fmt.Sprintf("%s%sAuthorization: Bearer leaver\r\nContent-Length: %d\r\n\r\n%s", start, pad, len(whole), whole)
				for range rounds { // the second finds the key's places free again
					if e.Slots > 1 {
						at.Store(0)
					}
					var talks []*talk
					for range clients {
						k := f.talk()
						talks = append(talks, k)
						k.say("%s", whole[:int(c.part*float64(len(whole)))])
					}
					for _, k := range talks {
						if c.read {
							_, err := k.in.ReadByte()
							require.NoError(t, err)
							first, err := k.in.ReadString('\n')
							require.NoError(t, err)
							require.Equal(t, "TTP/1.1 200 OK\r\n", first)
						}
					}
					if c.there != nil {
						eventually(t, "all are there", func() bool { return c.there(f, &at) })
					}
					for _, k := range talks {
						if reset {
							require.NoError(t, k.c.(*net.TCPConn).SetLinger(0))
						}
						k.c.Close()
					}
					eventually(t, "the gateway has noticed", func() bool {
						return f.metric("remuda_gateway_queue_length") == 0 && f.metric("remuda_gateway_in_flight") == float64(holders)
					})
					eventually(t, "their bodies are gone", func() bool { return f.metric("remuda_gateway_buffered_bytes") <= 4<<10 })
				}
				letGo()
				if e.Slots == 1 {
					require.Equal(t, `{"said":"held"}`, (<-held).body)
				}
				if c.part == 1 {
					f.counted(clients*rounds, "model", "m", "code", "499")
				}
				require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the engine is not to blame")
				require.Equal(t, http.StatusOK, f.post(plain, "Authorization", "Bearer leaver").status)
				f.settles(before, 2<<20) // half of what a leak of one of the cases makes
			})
		}
	}
}

// TestSlowReaders hold neither memory nor, if they stop, their slots.
func TestSlowReaders(t *testing.T) {
	const readers, slots = 8, 8
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %t", stream), func(t *testing.T) {
			f := newGateway(t, calm(t), patient, func(c *gateway.Config) { c.Timeouts.Write = 4 * time.Second }) // all slots are taken before
			var written, stuck atomic.Int64
			e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Header.Get("X-Slow") == "" {
					says("x")(w, r)
					return
				}
				kind, event := "application/json", bytes.Repeat([]byte("["), 64<<10)
				if stream {
					kind, event = "text/event-stream", []byte("data: "+strings.Repeat("x", 64<<10)+"\n\n")
				}
				w.Header().Set("Content-Type", kind)
				for {
					n, err := w.Write(event)
					written.Add(int64(n))
					if err != nil {
						stuck.Add(1)
						return
					}
				}
			})
			e.Slots = slots
			f.engines(e)
			require.Equal(t, http.StatusOK, f.post(plain).status)
			before := holds(t)
			for range readers {
				f.talk().say("%sX-Slow: 1\r\n%s%s", start, length, plain)
			}
			eventually(t, "all slots are taken", func() bool { return f.metric("remuda_gateway_in_flight") == slots })
			// Who waits gets the first slot that a reader has lost.
			next := make(chan answer, 1)
			go func() { next <- f.post(plain) }()
			most := int64(0)
			eventually(t, "the readers are cut", func() bool {
				most = max(most, heap()-before.heap)
				return stuck.Load() == readers
			})
			require.Equal(t, `{"said":"x"}`, (<-next).body)
			// What is on its way is in the kernel's buffers: some MB on either side.
			require.Less(t, written.Load(), int64(readers*32<<20))
			require.Less(t, most, int64(readers*512<<10))
			t.Logf("%d readers: %d KiB of answers on their way, %d KiB of memory at most", readers, written.Load()>>10, most>>10)
			require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the engine is not to blame")
			f.counted(readers, "code", "499")
			f.settles(before, 1<<20)
		})
	}
}

// TestSlowReaderGetsAll: one that reads on is never cut, however long it takes.
func TestSlowReaderGetsAll(t *testing.T) {
	const write = 3 * time.Second // a slow machine reads that often
	f := newGateway(t, calm(t), func(c *gateway.Config) { c.Timeouts.Write, c.Timeouts.StreamIdle = write, write })
	event := "data: " + strings.Repeat("x", 64<<10) + "\n\n"
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w)
		for range 256 {
			_, _ = io.WriteString(w, event)
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	began := time.Now()
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	size := 0
	for {
		n, err := io.CopyN(io.Discard, resp.Body, 64<<10)
		size += int(n)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		<-tick.C
	}
	require.Equal(t, 256*len(event)+len("data: [DONE]\n\n"), size)
	require.Greater(t, time.Since(began), write*3/2, "too fast to prove anything")
}

// TestHugePrompts: the answer belongs to the prompt, with many at once, in memory that is
// used again, and after an engine that failed in the middle of it.
func TestHugePrompts(t *testing.T) {
	for _, c := range []struct{ size, clients, each int }{{220 << 10, 16, long.Pick(4, 12)}, {10 << 20, 4, long.Pick(2, 3)}} {
		t.Run(fmt.Sprintf("%d KiB", c.size>>10), func(t *testing.T) {
			f := newGateway(t, calm(t), patient, func(cfg *gateway.Config) { cfg.Timeouts.EngineIdle = 500 * time.Millisecond })
			var failed atomic.Int64
			sum := func(w http.ResponseWriter, r *http.Request) {
				hash := sha256.New()
				_, err := io.Copy(hash, r.Body)
				if err != nil {
					panic(http.ErrAbortHandler) // the gateway's connection is broken
				}
				says(hex.EncodeToString(hash.Sum(nil)))(w, r)
			}
			sound, broken := newEngine(t, "a", sum), newEngine(t, "b", func(w http.ResponseWriter, r *http.Request) {
				if failed.Add(1) == 1 {
					_, _ = io.CopyN(io.Discard, r.Body, int64(c.size/2))
					panic(http.ErrAbortHandler)
				}
				sum(w, r)
			})
			f.engines(sound, broken)
			require.Equal(t, http.StatusOK, f.post(plain).status)
			before := holds(t)
			var wg sync.WaitGroup
			for client := range c.clients {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(client), uint64(c.size)))
					prompt := make([]byte, c.size)
					for i := range prompt {
						prompt[i] = 'a' + byte(random.Uint32()%26)
					}
					for n := range c.each {
						for at := 0; at+100 < len(prompt); at += 4 << 10 { // no two requests have the same prompt
							copy(prompt[at:], fmt.Sprint(n, "-", at))
						}
						body := fmt.Sprintf(`{"prompt":"%s","model":"m"}`, prompt)
						want := sha256.Sum256([]byte(body))
						a := f.post(body)
						if a.status != http.StatusOK || a.body != fmt.Sprintf(`{"said":"%x"}`, want) {
							t.Errorf("%d %.200s", a.status, a.body)
						}
					}
				})
			}
			wg.Wait()
			require.Positive(t, f.metric("remuda_gateway_retries_total"), "the engine that fails was asked")
			f.settles(before, 4<<20)
		})
	}
}

// TestManyLargeBodies: more than may be held or may wait are told so, and the others are
// served.
func TestManyLargeBodies(t *testing.T) {
	const clients, size = 64, 1 << 20
	for _, c := range []struct {
		name        string
		buffered    int64
		queue       int64
		code        map[string]int // of those refused, by status
		least, most int            // are served
	}{
		{"of memory", 8 << 20, 1000, map[string]int{"gateway_busy": http.StatusServiceUnavailable}, 4, 8},
		{"of places", 1 << 30, 4, map[string]int{"queue_full": http.StatusTooManyRequests}, 5, 5},
		{"of both", 12 << 20, 4, map[string]int{"queue_full": http.StatusTooManyRequests, "gateway_busy": http.StatusServiceUnavailable}, 5, 5},
	} {
		t.Run("too few "+c.name, func(t *testing.T) {
			f := newGateway(t, calm(t), patient, func(cfg *gateway.Config) {
				cfg.Limits.Body, cfg.Limits.Buffered, cfg.Queue.Length = 2*size, c.buffered, c.queue
			})
			entered, release := make(chan struct{}, clients), make(chan struct{})
			letGo := sync.OnceFunc(func() { close(release) })
			defer letGo()
			e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.ContentLength > 1000 {
					entered <- struct{}{}
					<-release
				}
				says("x")(w, r)
			})
			e.Slots = 1
			f.engines(e)
			f.client = f.fromEverywhere() // no client comes near its share
			require.Equal(t, http.StatusOK, f.post(plain).status)
			before := holds(t)
			body := fmt.Sprintf(`{"model":"m","prompt":"%s"}`, strings.Repeat("x", size-len(`{"model":"m","prompt":""}`)))
			answers := make(chan answer, clients)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ask := func() {
				go func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(body))
					resp, err := f.client.Do(req)
					if err != nil {
						answers <- answer{err: err}
						return
					}
					defer resp.Body.Close()
					b, err := io.ReadAll(resp.Body)
					answers <- answer{resp.StatusCode, resp.Header, string(b), err}
				}()
			}
			ask() // the others find the engine busy
			<-entered
			for range clients - 1 {
				ask()
			}
			var refused []answer
			eventually(t, "all are refused but those who wait", func() bool {
				for {
					select {
					case a := <-answers:
						refused = append(refused, a)
						continue
					default:
					}
					require.LessOrEqual(t, f.metric("remuda_gateway_buffered_bytes"), float64(c.buffered))
					return float64(clients-len(refused)-1) == f.metric("remuda_gateway_queue_length")
				}
			})
			eventually(t, "the gateway has counted the refusals", func() bool {
				counted := 0.0
				for _, status := range c.code {
					counted += f.metric("remuda_gateway_requests_total", "code", strconv.Itoa(status))
				}
				return counted == float64(len(refused))
			})
			for _, a := range refused {
				// A slow client that is still sending its body loses the answer with the
				// connection, which the gateway keeps open for half a second.
				if errors.Is(a.err, syscall.EPIPE) || errors.Is(a.err, syscall.ECONNRESET) {
					continue
				}
				require.NoError(t, a.err)
				found := false
				for code, status := range c.code {
					if a.status == status && strings.Contains(a.body, `"`+code+`"`) {
						requireErrorBody(t, a.body, code)
						found = true
					}
				}
				require.True(t, found, "%d %s", a.status, a.body)
				require.NotEmpty(t, a.header.Get("Retry-After"))
			}
			served := clients - len(refused)
			require.GreaterOrEqual(t, served, c.least)
			require.LessOrEqual(t, served, c.most)
			letGo()
			for range served {
				a := <-answers
				require.NoError(t, a.err)
				require.Equal(t, `{"said":"x"}`, a.body)
			}
			require.Equal(t, http.StatusOK, f.post(plain).status)
			f.settles(before, 4<<20)
		})
	}
}
