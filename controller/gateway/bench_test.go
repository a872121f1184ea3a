package gateway_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkGateway measures what the gateway adds to a request, beside what others add:
//
//	go test ./controller/gateway -run '^$' -bench Gateway -benchtime 1x
//
// The engine, a bare httputil.ReverseProxy, nginx, HAProxy and the gateway are processes
// of their own, the load comes from this one, all on this machine's cores
// (-gateway.oneprocess puts the servers written in Go into this one, which spares the
// wake-ups between processes that dominate on an idle machine). nginx and HAProxy are
// those of tools/peers or of the PATH; one that is not there is left out, and the table
// says so. The engine answers at once. Each round measures all targets one after the
// other; the tables have medians over the rounds.
//
// In a closed loop each connection sends its next request when the answer is there, so
// that all cores are busy and latency is mostly waiting for one; the paced rows send
// requests, or events of a stream, at a fixed rate far below that. Every event carries the
// time at which the engine wrote it: a token's latency is from there to the client.
func BenchmarkGateway(b *testing.B) {
	benchOnce.Do(func() {
		targets := startBenchTargets(b)
		cases := benchCases()
		var rows []benchRow
		for _, c := range cases {
			rows = append(rows, measureCase(b, c, targets)...)
		}
		printBench(rows, targets)
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
	benchOne    = flag.Bool("gateway.oneprocess", false, "run the Go servers of BenchmarkGateway in the process of the load")
	benchJSON   = flag.String("gateway.json", "", "`file` for the results of BenchmarkGateway")
	benchOnly   = flag.String("gateway.case", "", "measure only cases whose `name` begins so")
)

type benchCase struct {
	name    string
	conns   int
	request []byte
	// rate is requests per second over all connections; 0 is a closed loop.
	rate int
}

// benchRow is one line of the tables. Times are in microseconds.
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
	// OfProxy is Rate as a share of the bare ReverseProxy's.
	OfProxy float64 `json:"of_reverse_proxy"`
	// Tokens counts the events of streams; the times are from the engine's write to the
	// client's read.
	Tokens        int     `json:"tokens,omitempty"`
	TokenP50      float64 `json:"token_p50_us,omitempty"`
	TokenP99      float64 `json:"token_p99_us,omitempty"`
	AddedTokenP50 float64 `json:"added_token_p50_us,omitempty"`
	AddedTokenP99 float64 `json:"added_token_p99_us,omitempty"`
	// Failed counts answers that broke off. A bare ReverseProxy has some with
	// fast streams: net/http closes a request's body once an answer begins,
	// and the transport, which looks whether more of the body follows, takes
	// that for a failed request and closes the engine's connection.
	Failed int      `json:"failed"`
	CPU    benchCPU `json:"cpu"`
	took   time.Duration
}

// benchCases are unary and streamed answers to short and long prompts, each over 1 to 1,000
// connections, and the paced ones.
func benchCases() []benchCase {
	body := func(prompt int, more string) []byte {
		line := `a line of some forty bytes, with \"code\"\n`
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(line, prompt/len(line)) + `"}],"max_tokens":16` + more + `}`
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nAuthorization: Bearer x\r\nContent-Length: %d\r\n\r\n%s", chat, len(body), body)
	}
	var out []benchCase
	add := func(name string, conns int, request []byte, rate int) {
		if strings.HasPrefix(name, *benchOnly) {
			out = append(out, benchCase{name, conns, request, rate})
		}
	}
	for _, prompt := range []struct {
		name string
		size int
	}{{"1 KB", 1 << 10}, {"220 KB", 220 << 10}} {
		unary, stream := body(prompt.size, ""), body(prompt.size, benchStream)
		for _, conns := range []int{1, 10, 100, 1000} {
			add("unary "+prompt.name, conns, unary, 0)
		}
		for _, conns := range []int{1, 10, 100, 1000} {
			add("stream "+prompt.name, conns, stream, 0)
		}
	}
	add("paced unary, 1000/s", 10, body(1<<10, ""), 1000)
	add("paced unary 400 KB, 100/s", 10, body(400<<10, ""), 100)
	for _, conns := range []int{10, 100, 500} {
		add("paced stream, 50/s", conns, body(1<<10, benchPaced), 0)
	}
	return out
}

// measureCase runs one case against all targets, round by round.
func measureCase(b *testing.B, c benchCase, targets []*benchTarget) []benchRow {
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
			P50:      median(func(r benchRow) float64 { return r.P50 }),
			P99:      median(func(r benchRow) float64 { return r.P99 }),
			First:    median(func(r benchRow) float64 { return r.First }),
			Rate:     median(func(r benchRow) float64 { return r.Rate }),
			TokenP50: median(func(r benchRow) float64 { return r.TokenP50 }),
			TokenP99: median(func(r benchRow) float64 { return r.TokenP99 }),
		}
		row, direct := &rows[i], rows[0]
		for _, r := range rounds[i] {
			row.Requests += r.Requests
			row.Failed += r.Failed
			row.Tokens += r.Tokens
			row.took += r.took
			row.CPU.add(r.CPU)
		}
		if strings.Contains(c.name, "stream") && row.Tokens == 0 {
			b.Fatalf("%s at %s: no answer was a stream", c.name, t.name)
		}
		row.CPU.finish(row.took, row.Requests)
		row.AddedP50, row.AddedP99 = row.P50-direct.P50, row.P99-direct.P99
		row.AddedTokenP50, row.AddedTokenP99 = row.TokenP50-direct.TokenP50, row.TokenP99-direct.TokenP99
	}
	for i, t := range targets {
		if t.name == benchProxy {
			for j := range rows {
				rows[j].OfProxy = rows[j].Rate / rows[i].Rate
			}
		}
	}
	return rows
}

// printBench prints a table of latencies and rates and one of the processors' time.
func printBench(rows []benchRow, targets []*benchTarget) {
	where := "each server in its own process"
	if *benchOne {
		where = "all Go servers in one process"
	}
	fmt.Printf("\n%d cores, %s, %s, medians of %d rounds of %s each\n", runtime.NumCPU(), runtime.Version(), where, *benchRounds, *benchTime)
	for _, t := range targets {
		if t.version != "" {
			fmt.Printf("%s: %s\n", t.name, t.version)
		}
	}
	for _, name := range benchPeers {
		if !slices.ContainsFunc(targets, func(t *benchTarget) bool { return t.name == name }) {
			fmt.Printf("%s is not installed and left out: tools/peers unpacks it\n", name)
		}
	}
	fmt.Printf("\n%-19s %5s  %-13s %8s %8s %8s %9s %9s %9s %11s %8s  %8s %8s %9s %9s %6s\n", "case", "conns", "target", "n", "p50 us", "p99 us",
		"added p50", "added p99", "first us", "requests/s", "of proxy", "token50", "token99", "added t50", "added t99", "failed")
	for i, r := range rows {
		if i > 0 && i%len(targets) == 0 {
			fmt.Println()
		}
		tokens := fmt.Sprintf("%8s %8s %9s %9s", "", "", "", "")
		if r.Tokens > 0 {
			tokens = fmt.Sprintf("%8.0f %8.0f %9.0f %9.0f", r.TokenP50, r.TokenP99, r.AddedTokenP50, r.AddedTokenP99)
		}
		fmt.Printf("%-19s %5d  %-13s %8d %8.0f %8.0f %9.0f %9.0f %9.0f %11.0f %8.2f  %s %6d\n",
			r.Case, r.Conns, r.Target, r.Requests, r.P50, r.P99, r.AddedP50, r.AddedP99, r.First, r.Rate, r.OfProxy, tokens, r.Failed)
	}
	fmt.Printf("\nProcessors' time: percent of one core, and microseconds per request\n\n%-19s %5s  %-13s %9s %9s %9s  %11s %11s %11s\n",
		"case", "conns", "target", "client %", "target %", "engine %", "client us", "target us", "engine us")
	for i, r := range rows {
		if i > 0 && i%len(targets) == 0 {
			fmt.Println()
		}
		c := r.CPU
		fmt.Printf("%-19s %5d  %-13s %9.0f %9.0f %9.0f  %11.1f %11.1f %11.1f\n", r.Case, r.Conns, r.Target,
			100*c.Client, 100*c.Target, 100*c.Engine, c.ClientPerRequest, c.TargetPerRequest, c.EnginePerRequest)
	}
	fmt.Println()
}
