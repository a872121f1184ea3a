package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// benchServer is the variable that makes the test binary the server of BenchmarkClient.
const benchServer = "REMUDA_BENCH_SERVER"

const (
	// streamEvents is how many events a stream has, eventPause the time between two, so
	// that each event is a packet and a wake-up of its own.
	streamEvents = 50
	eventPause   = time.Millisecond
)

// serveBench answers POST /json with 1 KB of JSON and POST /stream with a stream of events,
// until the standard input ends, which is when the benchmark does.
func serveBench() {
	answer := fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 1013))
	event := []byte(`data: {"choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n")
	mux := http.NewServeMux()
	mux.HandleFunc("POST /json", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	})
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for range streamEvents {
			if _, err := w.Write(event); err != nil || out.Flush() != nil {
				return
			}
			time.Sleep(eventPause)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	panic(http.Serve(l, mux))
}

// startBenchServer runs serveBench in a process of its own and returns its address.
func startBenchServer(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSpace(addr)
}

// processorTime is the user and system time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkClient compares the processor time of this client with that of
// net/http.Transport. The server is another process, so its time does not count. The own
// client stays only while it takes at least 15 % less per request.
func BenchmarkClient(b *testing.B) {
	addr := startBenchServer(b)
	header := http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"bench"}}
	body := filled(1 << 10)
	own := newTransport(b)
	other := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	b.Cleanup(other.CloseIdleConnections)
	clients := []struct {
		name string
		do   func(ctx context.Context, path string) (*http.Response, error)
	}{
		{"upstream", func(ctx context.Context, path string) (*http.Response, error) {
			return own.Do(ctx, &upstream.Request{Addr: addr, Target: path, Header: header, Body: body})
		}},
		{"nethttp", func(ctx context.Context, path string) (*http.Response, error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader(body))
			if err != nil {
				return nil, err
			}
			r.Header = header
			return other.RoundTrip(r)
		}},
	}
	for _, path := range []string{"/json", "/stream"} {
		for _, conns := range []int{1, 32} {
			for _, client := range clients {
				b.Run(fmt.Sprintf("%s%s/conns=%d", client.name, path, conns), func(b *testing.B) {
					// ask sends n requests on all connections and returns how long each took.
					ask := func(n int) []time.Duration {
						took := make([]time.Duration, n)
						failed := make(chan error, conns)
						var next atomic.Int64
						var all sync.WaitGroup
						for range conns {
							all.Go(func() {
								buf := make([]byte, 4<<10)
								for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
									began := time.Now()
									ctx, cancel := context.WithCancel(b.Context())
									resp, err := client.do(ctx, path)
									for err == nil {
										_, err = resp.Body.Read(buf)
									}
									if !errors.Is(err, io.EOF) {
										cancel()
										failed <- err
										return
									}
									resp.Body.Close()
									cancel()
									took[i] = time.Since(began)
								}
							})
						}
						all.Wait()
						close(failed)
						require.NoError(b, <-failed)
						return took
					}
					ask(4 * conns) // connects
					before := processorTime(b)
					b.ResetTimer()
					took := ask(b.N)
					b.StopTimer()
					used := processorTime(b) - before
					slices.Sort(took)
					micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
					b.ReportMetric(micros(used)/float64(b.N), "cpu-µs/op")
					b.ReportMetric(micros(took[len(took)/2]), "p50-µs")
					b.ReportMetric(micros(took[len(took)*99/100]), "p99-µs")
				})
			}
		}
	}
}
