package enginemetrics_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/internal/sim/batch"
	simmetrics "remuda/internal/sim/metrics"
)

func page(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	require.NoError(t, err)
	return text
}

func parse(t *testing.T, text string, opts enginemetrics.Options) enginemetrics.Sample {
	t.Helper()
	s, err := enginemetrics.Parse([]byte(text), opts)
	require.NoError(t, err)
	return s
}

var of, bad, absent = enginemetrics.Of, enginemetrics.Flawed, enginemetrics.Value{}

func TestEngines(t *testing.T) {
	type want struct {
		dialect               string
		running, waiting, kv  enginemetrics.Value
		blocks, size, tokens  enginemetrics.Value
		finished, prompt, gen enginemetrics.Value
		queue, e2e            enginemetrics.Histogram
		first, inter          float64
	}
	h := func(sum, count float64) enginemetrics.Histogram {
		return enginemetrics.Histogram{Sum: of(sum), Count: of(count)}
	}
	for name, w := range map[string]want{
		"vllm": {dialect: "vllm", running: of(37), waiting: of(4), kv: of(0.6180339887498949), blocks: of(27489), size: of(16), tokens: of(439824),
			finished: of(9973), prompt: of(8812431), gen: of(2110394), first: 9980, queue: h(612.5, 9973), e2e: h(42172.75, 9973), inter: 2100414},
		"vllm_v0": {dialect: "vllm", running: of(8), waiting: of(5), kv: of(0.5), blocks: of(5691), size: of(16), tokens: of(91056),
			finished: of(120), inter: 1000},
		"sglang": {dialect: "sglang", running: of(17), waiting: of(2), kv: of(0.28), tokens: of(442361),
			finished: of(10011), prompt: of(8128902), gen: of(7557572), first: 11008, queue: h(220.25, 11008), e2e: h(3116093.75, 10011), inter: 7557572},
		"trtllm": {dialect: "trtllm", running: of(5), waiting: of(1), kv: of(0.62), blocks: of(4096), size: of(32), tokens: of(131072),
			finished: of(155), first: 150, queue: h(32.125, 155), e2e: h(45.25, 155), inter: 150},
		"tgi": {dialect: "tgi", running: of(5), waiting: of(3), finished: of(150), prompt: of(88000), gen: of(30125),
			queue: h(7.5, 154), e2e: h(301.5, 150)},
		"llamacpp": {dialect: "llamacpp", running: of(2), waiting: of(1), prompt: of(143), gen: of(673)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, told := range []bool{false, true} {
				var opts enginemetrics.Options
				if told {
					d, err := enginemetrics.Lookup(w.dialect)
					require.NoError(t, err)
					opts.Dialect = d
				}
				s := parse(t, string(page(t, name)), opts)
				require.Empty(t, s.Findings)
				require.True(t, s.Known())
				require.Equal(t, 1, s.Ranks)
				require.False(t, s.Asleep)
				c := s.Counters
				require.Equal(t, w, want{s.Dialect, s.Running, s.Waiting, s.KVUsage, s.Blocks, s.BlockSize, s.KVTokens,
					c.Finished, c.PromptTokens, c.GenerationTokens, c.Queue, c.EndToEnd, c.FirstTokens.Count(), c.InterTokens.Count()})
			}
		})
	}
}

func TestOurSimulator(t *testing.T) {
	m, err := simmetrics.New(simmetrics.Config{Model: "org/tiny:1b", MaxModelLen: 4096, BlockSize: 16, Blocks: 4096,
		Stats:      func() batch.Stats { return batch.Stats{Running: 3, Waiting: 2, UsedBlocks: 1024, TotalBlocks: 4096} },
		SleepState: func() string { return simmetrics.WeightsOffloaded },
		Memory:     func() (int64, int64) { return 0, 0 }, Faults: func() bool { return false }})
	require.NoError(t, err)
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	sim, err := enginemetrics.Lookup("sim")
	require.NoError(t, err)
	s := parse(t, rec.Body.String(), enginemetrics.Options{Dialect: sim, Models: []string{"org/tiny:1b"}})
	require.Equal(t, [4]enginemetrics.Value{of(3), of(2), of(0.25), of(65536)}, [4]enginemetrics.Value{s.Running, s.Waiting, s.KVUsage, s.KVTokens})
	require.True(t, s.Asleep)
	require.False(t, s.Known(), "a sleeping engine's zeros do not make it idle")
	require.Empty(t, s.Findings)
}

// small is a page of vLLM with the given KV lines.
func small(kv ...string) string {
	return "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 2\n" +
		"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1\n" + strings.Join(kv, "\n") + "\n"
}

func TestKVUsage(t *testing.T) {
	percent, err := enginemetrics.Lookup("vllm-percent")
	require.NoError(t, err)
	one := func(v string) string { return `vllm:kv_cache_usage_perc{engine="0",model_name="m"} ` + v }
	for name, tc := range map[string]struct {
		page    string
		dialect *enginemetrics.Dialect
		want    enginemetrics.Value
	}{
		"zero":                                {page: small(one("0")), want: of(0)},
		"negative zero is zero":               {page: small(one("-0")), want: of(0)},
		"full":                                {page: small(one("1")), want: of(1)},
		"full but for rounding":               {page: small(one("1.0000000000000002")), want: of(1)},
		"above one":                           {page: small(one("1.01")), want: bad(enginemetrics.AboveOne)},
		"a percentage without being told":     {page: small(one("87")), want: bad(enginemetrics.AboveOne)},
		"a percentage":                        {page: small(one("87")), dialect: percent, want: of(0.87)},
		"a percentage, full":                  {page: small(one("100")), dialect: percent, want: of(1)},
		"a percentage above 100":              {page: small(one("101")), dialect: percent, want: bad(enginemetrics.AboveOne)},
		"a percentage below zero":             {page: small(one("-1")), dialect: percent, want: bad(enginemetrics.Negative)},
		"NaN":                                 {page: small(one("NaN")), want: bad(enginemetrics.NotANumber)},
		"nan as C writes it":                  {page: small(one("-nan")), want: bad(enginemetrics.Unreadable)},
		"infinite":                            {page: small(one("+Inf")), want: bad(enginemetrics.Infinite)},
		"minus infinite":                      {page: small(one("-Inf")), want: bad(enginemetrics.Infinite)},
		"negative":                            {page: small(one("-5")), want: bad(enginemetrics.Negative)},
		"no number":                           {page: small(one("null")), want: bad(enginemetrics.Unreadable)},
		"no value":                            {page: small(`vllm:kv_cache_usage_perc{engine="0",model_name="m"}`), want: bad(enginemetrics.Unreadable)},
		"labels cut off":                      {page: small(`vllm:kv_cache_usage_perc{engine="0`), want: bad(enginemetrics.Unreadable)},
		"not shown":                           {page: small(), want: bad(enginemetrics.NotShown)},
		"old name":                            {page: small(`vllm:gpu_cache_usage_perc{model_name="m"} 0.4`), want: of(0.4)},
		"both names count once, new one wins": {page: small(`vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9`, one("0.3")), want: of(0.3)},
		"same series twice, alike":            {page: small(one("0.3"), one("0.3")), want: of(0.3)},
		"same series twice, different":        {page: small(one("0.3"), one("0.4")), want: bad(enginemetrics.Contradictory)},
		"quoted name":                         {page: small(`{"vllm:kv_cache_usage_perc",engine="0",model_name="m"} 0.7`), want: of(0.7)},
		"with a timestamp":                    {page: small(one("0.7") + " 1763720416000"), want: of(0.7)},
		"windows line ends":                   {page: small(one("0.7") + "\r"), want: of(0.7)},
		"without labels":                      {page: small(`vllm:kv_cache_usage_perc 0.7`), want: of(0.7)},
		"of another model":                    {page: small(`vllm:kv_cache_usage_perc{engine="0",model_name="x"} 0.7`), want: bad(enginemetrics.Mismatch)},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, tc.page, enginemetrics.Options{Dialect: tc.dialect, Models: []string{"m"}})
			require.Equal(t, tc.want, s.KVUsage)
			require.Equal(t, of(2), s.Running, "one bad line spoils nothing else")
			require.Equal(t, of(1), s.Waiting)
			_, flaw := tc.want.Get()
			require.Equal(t, flaw == enginemetrics.None, s.Known())
		})
	}
}

func TestCounts(t *testing.T) {
	for v, want := range map[string]enginemetrics.Value{
		"0": of(0), "2.5": of(2.5), "1e9": of(1e9), "1e10": bad(enginemetrics.TooLarge), "-1": bad(enginemetrics.Negative),
		"NaN": bad(enginemetrics.NotANumber), "Inf": bad(enginemetrics.Infinite),
	} {
		s := parse(t, "llamacpp:requests_processing 1\nllamacpp:requests_deferred "+v+"\nllamacpp:tokens_predicted_total "+v+"\n", enginemetrics.Options{})
		require.Equal(t, want, s.Waiting, v)
		if v != "1e10" { // fine for a counter
			require.Equal(t, want, s.Counters.GenerationTokens, v)
		}
	}
	s := parse(t, "llamacpp:requests_deferred 1\nllamacpp:tokens_predicted_total 1e17\n", enginemetrics.Options{})
	require.Equal(t, bad(enginemetrics.TooLarge), s.Counters.GenerationTokens)
	require.Equal(t, bad(enginemetrics.NotShown), s.Running)
	require.Equal(t, absent, s.KVUsage, "optional")
}

func TestRanks(t *testing.T) {
	series := func(name string, values ...string) string {
		var b strings.Builder
		for i, v := range values {
			if v != "" {
				fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",model_name=\"m\"} %s\n", name, i, v)
			}
		}
		return b.String()
	}
	full := series("num_requests_running", "3", "4") + series("num_requests_waiting", "0", "9")
	for name, tc := range map[string]struct {
		page  string
		kv    enginemetrics.Value
		ranks int
	}{
		"highest usage":               {full + series("kv_cache_usage_perc", "0.9", "0.1"), of(0.9), 2},
		"one rank is bad":             {full + series("kv_cache_usage_perc", "0.9", "NaN"), bad(enginemetrics.NotANumber), 2},
		"two reasons, the first wins": {full + series("kv_cache_usage_perc", "-1", "NaN"), bad(enginemetrics.NotANumber), 2},
		"one rank is missing":         {full + series("kv_cache_usage_perc", "0.9", ""), bad(enginemetrics.RankMissing), 2},
		"for the whole engine":        {full + "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\n", of(0.5), 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, tc.page, enginemetrics.Options{})
			require.Equal(t, tc.kv, s.KVUsage)
			require.Equal(t, tc.ranks, s.Ranks)
			require.Equal(t, of(7), s.Running)
			require.Equal(t, of(9), s.Waiting)
		})
	}
	t.Run("cache of all ranks", func(t *testing.T) {
		s := parse(t, full+`vllm:cache_config_info{engine="0",num_gpu_blocks="100",block_size="16"} 1
vllm:cache_config_info{engine="1",num_gpu_blocks="50",block_size="16"} 1
vllm:cache_config_info{engine="2",num_gpu_blocks="None",block_size="16"} 1
`, enginemetrics.Options{})
		require.Equal(t, [3]enginemetrics.Value{of(150), of(16), of(2400)}, [3]enginemetrics.Value{s.Blocks, s.BlockSize, s.KVTokens})
	})
	t.Run("shards of a rank say the same, ranks add up", func(t *testing.T) {
		var b strings.Builder
		for _, n := range []string{"num_running_reqs", "num_queue_reqs"} {
			for dp := range 2 {
				for tp := range 4 {
					fmt.Fprintf(&b, "sglang:%s{model_name=\"m\",dp_rank=\"%d\",tp_rank=\"%d\"} %d\n", n, dp, tp, 5+dp)
				}
			}
		}
		s := parse(t, b.String(), enginemetrics.Options{})
		require.Equal(t, of(11), s.Running)
		require.Equal(t, of(11), s.Waiting)
		require.Equal(t, 2, s.Ranks)
		require.Equal(t, bad(enginemetrics.NotShown), s.KVUsage)
	})
	t.Run("shards that differ for a moment, the highest counts", func(t *testing.T) {
		s := parse(t, "sglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"0\"} 2\nsglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\n", enginemetrics.Options{})
		require.Equal(t, of(3), s.Waiting)
	})
	t.Run("details of a total", func(t *testing.T) {
		s := parse(t, "sglang:num_queue_reqs{priority=\"\"} 5\nsglang:num_queue_reqs{priority=\"1\"} 2\nsglang:num_queue_reqs{priority=\"2\"} 3\n"+
			"sglang:num_running_reqs{priority=\"1\"} 2\nsglang:num_running_reqs{priority=\"2\"} 3\n", enginemetrics.Options{})
		require.Equal(t, of(5), s.Waiting)
		require.Equal(t, of(5), s.Running)
	})
}

func TestFindings(t *testing.T) {
	gauge := func(model string) string {
		return fmt.Sprintf("vllm:num_requests_running{model_name=%q} 1\nvllm:num_requests_waiting{model_name=%q} 0\nvllm:kv_cache_usage_perc{model_name=%q} 0\n", model, model, model)
	}
	for name, tc := range map[string]struct {
		page string
		opts enginemetrics.Options
		want []enginemetrics.Finding
	}{
		"the model":           {page: gauge("m"), opts: enginemetrics.Options{Models: []string{"m"}}},
		"one of its names":    {page: gauge("m"), opts: enginemetrics.Options{Models: []string{"x", "m"}}},
		"beside another":      {page: gauge("a") + gauge("m"), opts: enginemetrics.Options{Models: []string{"m"}}},
		"any model":           {page: gauge("a")},
		"no model label":      {page: "tgi_queue_size 1\ntgi_batch_current_size 1\n", opts: enginemetrics.Options{Models: []string{"m"}}},
		"another model":       {page: gauge("b") + gauge("a"), opts: enginemetrics.Options{Models: []string{"m"}}, want: []enginemetrics.Finding{{Kind: enginemetrics.LabelMismatch, Want: []string{"m"}, Seen: []string{"a", "b"}}}},
		"several, none named": {page: gauge("b") + gauge("a"), want: []enginemetrics.Finding{{Kind: enginemetrics.SeveralModels, Seen: []string{"a", "b"}}}},
		"empty":               {page: "", want: []enginemetrics.Finding{{Kind: enginemetrics.NoSeries, Want: []string{"any known engine"}}}},
		"not metrics":         {page: "<html>\n<body>502</body>\n{}0\n", want: []enginemetrics.Finding{{Kind: enginemetrics.NoSeries, Want: []string{"any known engine"}}}},
		"only counters":       {page: "vllm:prompt_tokens_total 4\n", opts: enginemetrics.Options{Dialect: enginemetrics.VLLM()}, want: []enginemetrics.Finding{{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}}},
		"another engine":      {page: gauge("m"), opts: enginemetrics.Options{Dialect: enginemetrics.SGLang()}, want: []enginemetrics.Finding{{Kind: enginemetrics.WrongDialect, Want: []string{"sglang"}, Seen: []string{"vllm"}}}},
		"two engines alike":   {page: gauge("m") + "sglang:num_running_reqs 1\nsglang:num_queue_reqs 1\nsglang:token_usage 0\n", want: []enginemetrics.Finding{{Kind: enginemetrics.AmbiguousDialect, Seen: []string{"sglang", "vllm"}}}},
		"mostly one engine":   {page: gauge("m") + "sglang:num_running_reqs 1\n"},
		"engine without any":  {page: gauge("m"), opts: enginemetrics.Options{Dialect: enginemetrics.Ollama()}, want: []enginemetrics.Finding{{Kind: enginemetrics.NoMetrics, Want: []string{"ollama"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, tc.page, tc.opts)
			require.Equal(t, tc.want, s.Findings)
			if len(tc.want) > 0 && tc.want[0].Kind != enginemetrics.SeveralModels {
				require.False(t, s.Known(), "never an idle model")
				_, flaw := s.Waiting.Get()
				require.NotEqual(t, enginemetrics.None, flaw)
				require.Zero(t, s.Ranks)
			}
			for _, f := range s.Findings {
				require.NotEqual(t, string(f.Kind), f.String(), "says what to do")
			}
		})
	}
}

func TestManyOtherModels(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "vllm:num_requests_waiting{model_name=\"x%02d\"} 1\n", i)
	}
	s := parse(t, b.String(), enginemetrics.Options{Models: []string{"m"}})
	require.Len(t, s.Findings, 1)
	require.Len(t, s.Findings[0].Seen, 10)
}

func TestLimits(t *testing.T) {
	_, err := enginemetrics.Parse(bytes.Repeat([]byte("\n"), enginemetrics.MaxBytes+1), enginemetrics.Options{})
	require.ErrorIs(t, err, enginemetrics.ErrTooLarge)
	_, err = enginemetrics.Parse(bytes.Repeat([]byte("vllm:num_requests_running 1\n"), enginemetrics.MaxSeries+1), enginemetrics.Options{})
	require.ErrorIs(t, err, enginemetrics.ErrTooManySeries)
	_, err = enginemetrics.Parse(bytes.Repeat([]byte("vllm:num_requests_running 1\n"), enginemetrics.MaxSeries), enginemetrics.Options{})
	require.NoError(t, err)
	_, err = enginemetrics.Parse([]byte("vllm:num_requests_running 12"), enginemetrics.Options{})
	require.ErrorIs(t, err, enginemetrics.ErrTruncated, "it may have been 120")
	text := page(t, "vllm")
	for cut := 1; cut < len(text); cut += 997 {
		if text[cut-1] == '\n' {
			continue
		}
		_, err = enginemetrics.Parse(text[:cut], enginemetrics.Options{})
		require.ErrorIs(t, err, enginemetrics.ErrTruncated)
	}
}

// TestTable: names that Prometheus takes, each of one quantity.
func TestTable(t *testing.T) {
	for _, d := range enginemetrics.Dialects() {
		same, err := enginemetrics.Lookup(d.Name)
		require.NoError(t, err)
		require.Equal(t, d, same)
		seen := map[string]bool{}
		for _, names := range d.Metrics {
			for _, n := range names {
				require.True(t, model.LegacyValidation.IsValidMetricName(n), n)
				require.False(t, seen[n], n)
				seen[n] = true
			}
		}
		for _, n := range slices.Concat(d.RankLabels, d.ShardLabels, d.DetailLabels) {
			require.True(t, model.LegacyValidation.IsValidLabelName(n), n)
		}
	}
	_, err := enginemetrics.Lookup("vllmm")
	require.ErrorIs(t, err, enginemetrics.ErrUnknownDialect)
	require.ErrorContains(t, err, `"vllmm"`)
	_, err = enginemetrics.Lookup("tgi-percent")
	require.ErrorIs(t, err, enginemetrics.ErrUnknownDialect, "it has no KV usage")
}

func TestRenameNamesEveryBadField(t *testing.T) {
	err := enginemetrics.VLLM().Rename(map[string]string{"running": "a b", "waiting": "x", "kv_usage": "x", "tokens": "y"})
	for _, part := range []string{`running is "a b"`, `waiting is "x": duplicate of series kv_usage`, `"tokens"`} {
		require.ErrorContains(t, err, part)
	}
}

func TestOwnDialect(t *testing.T) {
	d := &enginemetrics.Dialect{Name: "mine", Metrics: map[enginemetrics.Quantity][]string{enginemetrics.Waiting: {"my_queue"}}}
	s := parse(t, "my_queue{x=\"1\"} 3\nmy_queue{x=\"2\"} 4\n", enginemetrics.Options{Dialect: d})
	require.Equal(t, of(7), s.Waiting)
	require.Equal(t, absent, s.KVUsage)
	require.True(t, s.Known())
}

// A page in another order says the same, and a parser used before says the same
// as a new one.
func TestOrderDoesNotMatter(t *testing.T) {
	used := enginemetrics.NewParser(enginemetrics.Options{})
	value := rapid.SampledFrom([]string{"0", "0.1", "0.2", "0.3", "0.7", "1", "3", "NaN", "-1", "x", "+Inf"})
	name := rapid.SampledFrom([]string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped", "vllm:kv_cache_usage_perc",
		"vllm:gpu_cache_usage_perc", "vllm:request_success_total", "sglang:num_queue_reqs", "sglang:token_usage", "tgi_queue_size"})
	line := rapid.Custom(func(t *rapid.T) string {
		labels := rapid.Permutation([]string{
			fmt.Sprintf("engine=%q", rapid.SampledFrom([]string{"", "0", "1", "2"}).Draw(t, "engine")),
			fmt.Sprintf("model_name=%q", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model")),
			fmt.Sprintf("other=%q", rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "other")),
		}).Draw(t, "labels")
		return name.Draw(t, "name") + "{" + strings.Join(labels, ",") + "} " + value.Draw(t, "value")
	})
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(line, 1, 30).Draw(t, "lines")
		a, err := enginemetrics.Parse([]byte(strings.Join(lines, "\n")+"\n"), enginemetrics.Options{})
		require.NoError(t, err)
		shuffled := rapid.Permutation(lines).Draw(t, "shuffled")
		b, err := used.Parse([]byte(strings.Join(shuffled, "\n") + "\n"))
		require.NoError(t, err)
		require.Equal(t, a, b)
	})
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"vllm", "vllm_v0", "sglang", "trtllm", "tgi", "llamacpp"} {
		f.Add(page(f, name), "")
	}
	f.Add([]byte("{}0\n{\"vllm:kv_cache_usage_perc\"} 1\n"), "m")
	f.Add([]byte("vllm:num_requests_waiting{model_name=\"m\"} 1 # {a=\"b\"} 1\n"), "m")
	f.Fuzz(func(t *testing.T, text []byte, model string) {
		var opts enginemetrics.Options
		if model != "" {
			opts.Models = []string{model}
		}
		s, err := enginemetrics.Parse(text, opts)
		if err != nil {
			require.Equal(t, enginemetrics.Sample{}, s)
			return
		}
		sound(t, s)
		again, err := enginemetrics.Parse(text, opts)
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

// sound checks that no number is one that cannot be.
func sound(t *testing.T, s enginemetrics.Sample) {
	t.Helper()
	c := s.Counters
	for _, v := range []enginemetrics.Value{s.Running, s.Waiting, s.KVUsage, s.Blocks, s.BlockSize, s.KVTokens, c.Finished,
		c.PromptTokens, c.GenerationTokens, c.Queue.Sum, c.Queue.Count, c.EndToEnd.Sum, c.EndToEnd.Count} {
		if f, flaw := v.Get(); flaw == enginemetrics.None {
			require.True(t, f >= 0 && f <= 1<<53, v)
		} else if v != absent {
			require.Equal(t, bad(flaw), v, "no number is kept")
		}
	}
	if kv, flaw := s.KVUsage.Get(); flaw == enginemetrics.None {
		require.LessOrEqual(t, kv, 1.0)
	}
	for _, l := range []enginemetrics.Latency{c.FirstTokens, c.InterTokens} {
		require.True(t, slices.IsSorted(l.Counts) && slices.IsSorted(l.Bounds))
		require.Equal(t, l.Flaw == enginemetrics.None && len(l.Bounds) > 0, len(l.Counts) == len(l.Bounds)+1)
	}
	if s.Known() {
		require.Contains(t, []any{absent, of(s.Waiting.Or(0))}, s.Waiting)
		require.Positive(t, s.Ranks)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, name := range []string{"vllm", "sglang", "llamacpp"} {
		b.Run(name, func(b *testing.B) {
			text := page(b, name)
			p := enginemetrics.NewParser(enginemetrics.Options{})
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWholePage is the same parser over all lines of the page, to compare
// with BenchmarkParse.
func BenchmarkWholePage(b *testing.B) {
	text := page(b, "vllm")
	p := expfmt.NewTextParser(model.UTF8Validation)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
			b.Fatal(err)
		}
	}
}
