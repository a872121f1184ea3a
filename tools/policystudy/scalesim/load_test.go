package scalesim_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/scalesim"
)

func TestReadRequests(t *testing.T) {
	speed := scalesim.Speed{PerContext: time.Millisecond, PerGenerated: s}
	for _, c := range []struct {
		name, text string
		want       []scalesim.Arrival
		span       time.Duration
	}{
		{"Azure 2023, seven digits, no line end at the end", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109",
			[]scalesim.Arrival{{At: 0, Context: 374, Generated: 44}, {At: 4314579 * time.Microsecond, Context: 396, Generated: 109}}, 2 * 4314579 * time.Microsecond},
		{"Azure 2024, a zone, over midnight", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 23:59:59.5+00:00,1,2\r\n2024-05-11 00:00:00.5+00:00,3,4\r\n",
			[]scalesim.Arrival{{At: 0, Context: 1, Generated: 2}, {At: s, Context: 3, Generated: 4}}, 2 * s},
		{"BurstGPT, not in order, other columns", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n15,ChatGPT,30,3,33,API log\n5,GPT-4,10,1,11,API log\n10.5,GPT-4,20,0,20,API log\n",
			[]scalesim.Arrival{{At: 0, Context: 10, Generated: 1}, {At: 5500 * time.Millisecond, Context: 20}, {At: 10 * s, Context: 30, Generated: 3}}, 15 * s},
		{"one request", "timestamp,contexttokens,generatedtokens\n7,1,1\n", []scalesim.Arrival{{Context: 1, Generated: 1}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace, err := scalesim.ReadRequests("log", strings.NewReader(c.text), speed)
			require.NoError(t, err)
			for i := range c.want {
				c.want[i].Service = speed.Service(c.want[i].Context, c.want[i].Generated)
			}
			require.Equal(t, &scalesim.Trace{Name: "log", Span: c.span, Arrivals: c.want}, trace)
			require.NoError(t, trace.Validate())
		})
	}
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "read log: no header"},
		{"no requests", head, "it has a header and no requests"},
		{"no such column", "a,b\n1,2\n", `names no column "timestamp": its header is "a,b"`},
		{"a bad time", head + "1,1,1\nyesterday,1,1\n", `line 3: timestamp is "yesterday"`},
		{"a time before 0", head + "-1,1,1\n", `line 2: timestamp is "-1"`},
		{"NaN", head + "NaN,1,1\n", `line 2: timestamp is "NaN"`},
		{"bad tokens", head + "1,x,1\n", `line 2: contexttokens is "x"`},
		{"negative tokens", head + "1,1,-1\n", `line 2: generatedtokens is "-1"`},
		{"too many tokens", head + "1,1,3000000000\n", `line 2: generatedtokens is "3000000000"`},
		{"a field is missing", head + "1,1\n", "wrong number of fields"},
		{"too far apart", head + "2000-01-01 00:00:00,1,1\n2020-01-01 00:00:00,1,1\n", "its requests are more than"},
		{"a line without end", head + strings.Repeat("1", 100_000), "a line is longer than 65536 bytes"},
		{"a field without end", head + `"` + strings.Repeat("1", 100_000), "a line is longer than 65536 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := scalesim.ReadRequests("log", strings.NewReader(c.text), speed)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// pack makes a tar.gz of pairs of name and text.
func pack(t testing.TB, files ...string) []byte {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(files[i+1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, gz.Close())
	return b.Bytes()
}

func TestReadServeGen(t *testing.T) {
	got, err := scalesim.ReadServeGen("m", bytes.NewReader(pack(t,
		"b.csv", "0,2,1,Weibull,0.5,0.1\n60,0,0,,0,0\n", "README", "text", "a.csv", "0,0.1,1,Gamma,2,5\n\n60,1,1,,0,0")))
	require.NoError(t, err)
	require.Equal(t, &scalesim.Clients{Name: "m", Window: time.Minute, Clients: []scalesim.Client{
		{Name: "a.csv", Windows: []scalesim.Window{{Rate: 0.1, Kind: scalesim.Gamma, Shape: 2}, {Rate: 1}}},
		{Name: "b.csv", Windows: []scalesim.Window{{Rate: 2, Kind: scalesim.Weibull, Shape: 0.5}, {}}}}}, got)
	require.Equal(t, 2*time.Minute, got.Span())
	require.InDelta(t, 186, got.Requests(), 1e-9)

	const ok = "0,1,1,Gamma,1,1\n"
	for _, c := range []struct {
		name  string
		files []string
		want  string
	}{
		{"no files", nil, "it has no CSV file"},
		{"no windows", []string{"a.csv", ""}, "a.csv: it has no windows"},
		{"fields", []string{"a.csv", ok + "600,1\n"}, "a.csv: line 2: it has 2 fields"},
		{"the first start", []string{"a.csv", "5,1,1,Gamma,1,1\n"}, `line 1: start is "5": window 0 must start at 0 s`},
		{"a gap", []string{"a.csv", ok + "600,0,0,,0,0\n1800,0,0,,0,0\n"}, `line 3: start is "1800": window 2 must start at 1200 s`},
		{"window of 0", []string{"a.csv", ok + "0,1,1,Gamma,1,1\n"}, `line 2: start is "0"`},
		{"start NaN", []string{"a.csv", ok + "NaN,1,1,Gamma,1,1\n"}, `line 2: start is "NaN"`},
		{"rate", []string{"a.csv", "0,-1,1,Gamma,1,1\n"}, `line 1: rate is "-1"`},
		{"rate NaN", []string{"a.csv", "0,nan,1,Gamma,1,1\n"}, `rate is "nan"`},
		{"shape", []string{"a.csv", "0,1,1,Weibull,0,1\n"}, `shape is "0"`},
		{"distribution", []string{"a.csv", "0,1,1,Pareto,1,1\n"}, `distribution is "Pareto"`},
		{"two lengths", []string{"a.csv", ok + "600,0,0,,0,0\n", "b.csv", ok + "60,0,0,,0,0\n"}, "b.csv has windows of 1m0s, others of 10m0s"},
		{"twice", []string{"a.csv", ok, "a.csv", ok}, "a.csv is in it twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := scalesim.ReadServeGen("m", bytes.NewReader(pack(t, c.files...)))
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err = scalesim.ReadServeGen("m", strings.NewReader("text"))
	require.ErrorContains(t, err, "not a gzip file")
	whole := pack(t, "a.csv", strings.Repeat(ok, 1))
	_, err = scalesim.ReadServeGen("m", bytes.NewReader(whole[:len(whole)/2]))
	require.Error(t, err)
}

// TestGenerate shows that every window has the requests that were measured, and that the
// times between them have the shape.
func TestGenerate(t *testing.T) {
	for _, c := range []struct {
		window scalesim.Window
		cv     float64 // of the distribution
	}{
		{scalesim.Window{Rate: 10}, 1},
		{scalesim.Window{Rate: 10, Kind: scalesim.Gamma, Shape: 1}, 1},
		{scalesim.Window{Rate: 10, Kind: scalesim.Gamma, Shape: 0.25}, 2},
		{scalesim.Window{Rate: 10, Kind: scalesim.Gamma, Shape: 4}, 0.5},
		{scalesim.Window{Rate: 10, Kind: scalesim.Weibull, Shape: 2}, 0.5227},
		{scalesim.Window{Rate: 10, Kind: scalesim.Weibull, Shape: 0.6}, 1.7581},
	} {
		t.Run(fmt.Sprint(c.window), func(t *testing.T) {
			windows := make([]scalesim.Window, 10)
			for i := range windows {
				windows[i] = c.window
			}
			clients := &scalesim.Clients{Window: 10 * time.Minute, Clients: []scalesim.Client{{Windows: windows}}}
			trace, err := clients.Generate(3, 1, 0, 0, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
			require.NoError(t, err)
			require.NoError(t, trace.Validate())
			require.Len(t, trace.Arrivals, 60_000)
			sum, squares := 0.0, 0.0
			for i := 1; i < len(trace.Arrivals); i++ {
				g := (trace.Arrivals[i].At - trace.Arrivals[i-1].At).Seconds()
				sum, squares = sum+g, squares+g*g
			}
			m := sum / 59_999
			require.InEpsilon(t, c.cv, math.Sqrt(squares/59_999-m*m)/m, 0.06)
			for k := range windows {
				require.Len(t, trace.Slice(time.Duration(k)*clients.Window, time.Duration(k+1)*clients.Window).Arrivals, 6000)
			}
		})
	}

	clients := &scalesim.Clients{Name: "c", Window: time.Minute, Clients: []scalesim.Client{
		{Windows: []scalesim.Window{{Rate: 1}, {Rate: 1}, {}, {Rate: 1}}}, {Windows: []scalesim.Window{{Rate: 2, Kind: scalesim.Gamma, Shape: 0.001}}}}}
	gen := func(seed uint64, scale float64, from, to time.Duration) *scalesim.Trace {
		trace, err := clients.Generate(seed, scale, from, to, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
		require.NoError(t, err)
		return trace
	}
	require.Equal(t, gen(1, 1, 0, 0), gen(1, 1, 0, 0))
	require.NotEqual(t, gen(1, 1, 0, 0), gen(2, 1, 0, 0))
	require.Len(t, gen(1, 0.11, 0, 0).Arrivals, 19+13) // 19.8 and 13.2, fractions carried
	part := gen(1, 1, time.Minute, 3*time.Minute)
	require.Equal(t, 2*time.Minute, part.Span)
	require.Len(t, part.Arrivals, 60)
	for _, bad := range []struct {
		scale    float64
		from, to time.Duration
		want     string
	}{
		{0, 0, 0, "with scale 0"}, {math.NaN(), 0, 0, "with scale NaN"}, {1e9, 0, 0, "with scale 1e+09"},
		{1, time.Hour, 0, "no window lies from 1h0m0s to 4m0s"}, {1, 30 * s, 80 * s, "no window lies from 30s to 1m20s"},
	} {
		_, err := clients.Generate(1, bad.scale, bad.from, bad.to, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
		require.ErrorContains(t, err, bad.want)
	}
	_, err := (&scalesim.Clients{}).Generate(1, 1, 0, 0, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.ErrorContains(t, err, "its window is 0s")
}

// TestFiles reads small files of the published formats, and simulates a little of them.
func TestFiles(t *testing.T) {
	const dir = "testdata"
	one := func(pattern string) *os.File {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.Len(t, names, 1, "%s in %s", pattern, dir)
		f, err := os.Open(names[0])
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	azure, err := scalesim.ReadRequests("azure", one("azure*.csv"), scalesim.DefaultSpeed())
	require.NoError(t, err)
	require.NoError(t, azure.Validate())
	clients, err := scalesim.ReadServeGen("servegen", one("servegen*.tar.gz"))
	require.NoError(t, err)
	scale := min(1, 2e5/clients.Requests())
	trace, err := clients.Generate(1, scale, 0, 0, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	require.NoError(t, trace.Validate())
	require.Equal(t, clients.Span(), trace.Span)
	require.InDelta(t, clients.Requests()*scale, len(trace.Arrivals), float64(len(clients.Clients)))
	for _, trace := range []*scalesim.Trace{azure, trace} {
		cfg := scalesim.DefaultConfig()
		cfg.Slots, cfg.Min = 8, 1
		r, err := scalesim.Run(cfg, trace, follow{margin: 1.3})
		require.NoError(t, err)
		require.EqualValues(t, len(trace.Arrivals), r.Requests)
		t.Logf("%s: %v, %d requests, %.2f/s, mean service %v, %.1f slots busy; %d started, %.2f GPU-h, %.4f in time",
			trace.Name, trace.Span, len(trace.Arrivals), trace.Rate(), trace.MeanService(), trace.Offered(), r.Started, r.GPUHours, r.InTime)
	}
}

func FuzzReadRequests(f *testing.F) {
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109")
	f.Add("Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,472,18\n3e8,\"a\nb\",1,1\n")
	f.Add("timestamp,contexttokens,generatedtokens\n1677-09-21 00:12:44,1,1\n2262-04-11 23:47:16,1,1\n")
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := scalesim.ReadRequests("fuzz", strings.NewReader(text), scalesim.DefaultSpeed())
		if err != nil {
			require.Nil(t, trace)
			return
		}
		require.NoError(t, trace.Validate())
	})
}

func FuzzReadServeGen(f *testing.F) {
	f.Add("0,2,1,Weibull,0.5,0.1\n600,0,0,,0,0\n")
	f.Add("0,1e6,1,Gamma,1e-3,0\n1,1e6,1,Weibull,1e6,0")
	f.Add("0,0.001,1,,,\n1e6,3,,Gamma,0.001,\n")
	f.Fuzz(func(t *testing.T, text string) {
		clients, err := scalesim.ReadServeGen("fuzz", bytes.NewReader(pack(t, "a.csv", text)))
		if err != nil {
			require.Nil(t, clients)
			return
		}
		scale := min(1, 1000/max(clients.Requests(), 1))
		trace, err := clients.Generate(1, scale, 0, 0, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
		if err != nil {
			return
		}
		require.NoError(t, trace.Validate())
		require.InDelta(t, clients.Requests()*scale, len(trace.Arrivals), 1.1)
	})
}
