package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// BenchmarkGateway measures what the gateway adds to a request:
//
//	go test ./controller/gateway -run '^$' -bench Gateway -benchtime 1x
//
// The engine, the gateway and a bare httputil.ReverseProxy are three processes
// of their own, the load comes from this one, all on this machine's cores
// (-gateway.oneprocess puts all into one, which spares the wake-ups between
// processes that dominate on an idle machine). The engine answers at once. Each round measures the engine directly, the reverse
// proxy and the gateway one after the other; the table has medians over the
// rounds. In a closed loop each connection sends its next request when the
// answer is there, so that all cores are busy and latency is mostly waiting
// for one; the paced rows send at a fixed rate far below that.
func BenchmarkGateway(b *testing.B) {
	benchOnce.Do(func() {
		engine := startBenchRole(b, "engine", "")
		targets := []benchTarget{
			{"direct", engine},
			{"reverse proxy", startBenchRole(b, "reverseproxy", engine)},
			{"gateway", startBenchRole(b, "gateway", engine)},
		}
		var rows []benchRow
		for _, c := range benchCases() {
			rows = append(rows, measureCase(b, c, targets)...)
		}
		printBench(rows)
		if *benchJSON != "" {
			out, err := json.MarshalIndent(rows, "", "  ")
			if err == nil {
				err = os.WriteFile(*benchJSON, append(out, '\n'), 0o644)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

var (
	benchOnce   sync.Once
	benchRounds = flag.Int("gateway.rounds", 5, "rounds of BenchmarkGateway")
	benchTime   = flag.Duration("gateway.time", time.Second, "time for one measurement of BenchmarkGateway")
	benchOne    = flag.Bool("gateway.oneprocess", false, "run the servers of BenchmarkGateway in the process of the load")
	benchJSON   = flag.String("gateway.json", "", "`file` for the results of BenchmarkGateway")
)

const (
	benchRole   = "REMUDA_GATEWAY_BENCH_ROLE"
	benchEngine = "REMUDA_GATEWAY_BENCH_ENGINE"
	benchEvents = 32 // events of one benchmark stream
)

type benchTarget struct{ name, addr string }

type benchCase struct {
	name    string
	conns   int
	request []byte
	// rate is requests per second over all connections; 0 is a closed loop.
	rate int
}

// benchRow is one line of the table. Times are in microseconds.
type benchRow struct {
	Case     string  `json:"case"`
	Conns    int     `json:"conns"`
	Target   string  `json:"target"`
	Requests int     `json:"requests"`
	Rounds   int     `json:"rounds"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	AddedP50 float64 `json:"added_p50_us"`
	AddedP99 float64 `json:"added_p99_us"`
	First    float64 `json:"first_byte_p50_us"`
	Rate     float64 `json:"requests_per_second"`
	// Failed counts answers that broke off. A bare ReverseProxy has some with
	// fast streams: net/http closes a request's body once an answer begins,
	// and the transport, which looks whether more of the body follows, takes
	// that for a failed request and closes the engine's connection.
	Failed int `json:"failed"`
}

func benchCases() []benchCase {
	request := func(body string) []byte {
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nAuthorization: Bearer x\r\nContent-Length: %d\r\n\r\n%s", chat, len(body), body)
	}
	short := request(`{"model":"m","messages":[{"role":"user","content":"Say hello."}],"max_tokens":16}`)
	stream := request(`{"model":"m","messages":[{"role":"user","content":"Say hello."}],"stream":true}`)
	long := request(`{"messages":[{"role":"user","content":"` + strings.Repeat(`a line of some forty bytes, with \"code\"\n`, 220<<10/43) + `"}],"model":"m"}`)
	return []benchCase{
		{"short", 1, short, 0}, {"short", 10, short, 0}, {"short", 100, short, 0},
		{"short, 1000/s", 10, short, 1000},
		{"stream of 32", 1, stream, 0}, {"stream of 32", 10, stream, 0}, {"stream of 32", 100, stream, 0},
		{"220 KB prompt", 1, long, 0}, {"220 KB prompt", 10, long, 0},
	}
}

// measureCase runs one case against all targets, round by round.
func measureCase(b *testing.B, c benchCase, targets []benchTarget) []benchRow {
	b.Helper()
	rounds := make([][]benchRow, len(targets))
	for round := range *benchRounds + 1 {
		for i, t := range targets {
			row := measure(b, c, t)
			if round > 0 { // the first one warms up
				rounds[i] = append(rounds[i], row)
			}
		}
	}
	rows := make([]benchRow, len(targets))
	for i, t := range targets {
		median := func(field func(benchRow) float64) float64 {
			values := make([]float64, len(rounds[i]))
			for j, r := range rounds[i] {
				values[j] = field(r)
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		rows[i] = benchRow{
			Case: c.name, Conns: c.conns, Target: t.name, Rounds: *benchRounds,
			P50:   median(func(r benchRow) float64 { return r.P50 }),
			P99:   median(func(r benchRow) float64 { return r.P99 }),
			First: median(func(r benchRow) float64 { return r.First }),
			Rate:  median(func(r benchRow) float64 { return r.Rate }),
		}
		for _, r := range rounds[i] {
			rows[i].Requests += r.Requests
			rows[i].Failed += r.Failed
		}
		rows[i].AddedP50 = rows[i].P50 - rows[0].P50
		rows[i].AddedP99 = rows[i].P99 - rows[0].P99
	}
	return rows
}

// measure loads one target for a while.
func measure(b *testing.B, c benchCase, t benchTarget) benchRow {
	b.Helper()
	type result struct {
		total, first []time.Duration
		failed       int
		err          error
	}
	results := make([]result, c.conns)
	begin := time.Now()
	end := begin.Add(*benchTime)
	var wg sync.WaitGroup
	for i := range c.conns {
		wg.Go(func() {
			r := &results[i]
			conn, err := net.Dial("tcp", t.addr)
			if err != nil {
				r.err = err
				return
			}
			defer func() { conn.Close() }()
			br := bufio.NewReaderSize(conn, 32<<10)
			next := begin
			if c.rate > 0 {
				next = begin.Add(time.Second * time.Duration(i) / time.Duration(c.rate))
			}
			for {
				if c.rate > 0 {
					next = next.Add(time.Second * time.Duration(c.conns) / time.Duration(c.rate))
					time.Sleep(time.Until(next))
				}
				sent := time.Now()
				if sent.After(end) {
					return
				}
				first, err := benchRequest(conn, br, c.request)
				if err != nil {
					r.failed++
					conn.Close()
					if conn, err = net.Dial("tcp", t.addr); err != nil {
						r.err = err
						return
					}
					br.Reset(conn)
					continue
				}
				r.total = append(r.total, time.Since(sent))
				r.first = append(r.first, first.Sub(sent))
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	var total, first []time.Duration
	failed := 0
	for _, r := range results {
		if r.err != nil {
			b.Fatalf("%s against %s: %v", c.name, t.name, r.err)
		}
		failed += r.failed
		total, first = append(total, r.total...), append(first, r.first...)
	}
	if len(total) == 0 {
		b.Fatalf("%s against %s: no request was answered, %d failed", c.name, t.name, failed)
	}
	if failed > 0 && t.name != "reverse proxy" {
		b.Errorf("%s against %s: %d requests failed", c.name, t.name, failed)
	}
	slices.Sort(total)
	slices.Sort(first)
	us := func(d []time.Duration, q float64) float64 {
		return float64(d[int(q*float64(len(d)-1))]) / float64(time.Microsecond)
	}
	return benchRow{Requests: len(total), Failed: failed, P50: us(total, .5), P99: us(total, .99), First: us(first, .5), Rate: float64(len(total)) / took.Seconds()}
}

// benchRequest sends one request and reads the whole answer. It returns when
// the first byte of the answer's body was there.
func benchRequest(conn net.Conn, br *bufio.Reader, request []byte) (time.Time, error) {
	if _, err := conn.Write(request); err != nil {
		return time.Time{}, err
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return time.Time{}, err
	}
	var buf [4096]byte
	n, err := resp.Body.Read(buf[:])
	first := time.Now()
	size := n
	for err == nil {
		n, err = resp.Body.Read(buf[:])
		size += n
	}
	if err != io.EOF {
		return first, err
	}
	if resp.StatusCode != http.StatusOK || size == 0 {
		return first, fmt.Errorf("status %d with %d bytes", resp.StatusCode, size)
	}
	return first, nil
}

func printBench(rows []benchRow) {
	where := "each server in its own process"
	if *benchOne {
		where = "all in one process"
	}
	fmt.Printf("\n%d cores, %s, %s, medians of %d rounds of %s each\n\n", runtime.NumCPU(), runtime.Version(), where, *benchRounds, *benchTime)
	fmt.Printf("%-14s %5s  %-13s %8s %9s %9s %10s %10s %9s %10s %6s\n",
		"case", "conns", "target", "n", "p50 us", "p99 us", "added p50", "added p99", "first us", "requests/s", "failed")
	for i, r := range rows {
		if i > 0 && i%3 == 0 {
			fmt.Println()
		}
		fmt.Printf("%-14s %5d  %-13s %8d %9.0f %9.0f %10.0f %10.0f %9.0f %10.0f %6d\n",
			r.Case, r.Conns, r.Target, r.Requests, r.P50, r.P99, r.AddedP50, r.AddedP99, r.First, r.Rate, r.Failed)
	}
	fmt.Println()
}

// startBenchRole starts one of the servers and returns its address: this test
// binary again, which ends when its standard input closes and so never
// outlives us, or a goroutine.
func startBenchRole(b *testing.B, role, engine string) string {
	b.Helper()
	if *benchOne {
		ctx, stop := context.WithCancel(context.Background())
		addr, done := make(chan string, 1), make(chan error, 1)
		go func() { done <- serveBenchRole(ctx, role, engine, func(a net.Addr) { addr <- a.String() }) }()
		b.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				b.Errorf("%s: %v", role, err)
			}
		})
		return <-addr
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), benchRole+"="+role, benchEngine+"="+engine)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", role, err)
		}
	})
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatalf("%s does not start: %v", role, err)
	}
	return strings.TrimSpace(addr)
}

// runBenchRole is main of such a process.
func runBenchRole(role string) int {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := serveBenchRole(ctx, role, os.Getenv(benchEngine), func(a net.Addr) { fmt.Println(a) }); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

func serveBenchRole(ctx context.Context, role, engine string, listening func(net.Addr)) error {
	switch role {
	case "engine":
		return serveBench(ctx, http.HandlerFunc(benchAnswer), listening)
	case "reverseproxy":
		transport := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
		defer transport.CloseIdleConnections()
		return serveBench(ctx, &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine}) },
			Transport:     transport,
			FlushInterval: -1,
			ErrorLog:      log.New(io.Discard, "", 0),
		}, listening)
	default:
		cfg := gateway.DefaultConfig()
		cfg.Listen = "127.0.0.1:0"
		cfg.Watcher = fixed{engineAt("a", engine)}
		cfg.OnListen = listening
		g, err := gateway.New(cfg)
		if err != nil {
			return err
		}
		return g.Run(ctx)
	}
}

// fixed is a Watcher with one list.
type fixed []replica.Engine

func (w fixed) Watch(ctx context.Context, update func([]replica.Engine, bool), lost func()) error {
	update(w, false)
	<-ctx.Done()
	return ctx.Err()
}

func serveBench(ctx context.Context, h http.Handler, listening func(net.Addr)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listening(l.Addr())
	s := &http.Server{Handler: h}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

var (
	benchWhole = []byte(`{"id":"chatcmpl-0123456789","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}`)
	benchEvent = []byte("data: {\"id\":\"chatcmpl-0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}]}\n\n")
)

// benchAnswer is an engine that answers at once.
func benchAnswer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !strings.HasSuffix(string(body), `"stream":true}`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(benchWhole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for range benchEvents {
		_, _ = w.Write(benchEvent)
		_ = rc.Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
