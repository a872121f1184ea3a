package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestKeyVerbs goes through the life of a key, and what it uses.
func TestKeyVerbs(t *testing.T) {
	t.Parallel()
	r := newWorld(t).dev()
	require.Equal(t, "No keys. Add one with \"remuda key create NAME\".\n", r.ok("key", "list"))

	out := r.ok("key", "create", "team/a", "-models", "llama*, small", "-weight", "2", "-priority", "3", "-max-priority", "7", "-rpm", "60", "-tpm", "1000", "-concurrency", "4", "-tokens-per-day", "100", "-tokens-per-month", "1000", "-expires", "2126-02-01")
	secret := regexp.MustCompile(`(?m)^sk-remuda-[A-Za-z0-9_-]{43}$`).FindString(out)
	require.NotEmpty(t, secret, out)
	require.Equal(t, "Key \"team/a\" created.\nIts secret, which is shown only now:\n\n"+secret+"\n", out)
	var k api.KeyStatus
	r.json(&k, "key", "status", "team/a")
	require.Equal(t, api.KeyLimits{Models: []string{"llama*", "small"}, Weight: 2, Priority: 3, MaxPriority: 7, RequestsPerMinute: 60, TokensPerMinute: 1000, Concurrency: 4,
		TokensPerDay: 100, TokensPerMonth: 1000, ExpiresAt: time.Date(2126, 2, 1, 0, 0, 0, 0, time.UTC)}, k.KeyLimits)
	require.Equal(t, secret[:14], k.Secrets[0].Prefix)
	got := r.do("key", "create", "team/a")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `key "team/a" already exists`)

	// Only the flags that are given change something.
	require.Equal(t, "Key \"team/a\" updated.\n", r.ok("key", "update", "team/a", "-rpm", "0", "-models", "*", "-expires", "never"))
	require.Equal(t, "Nothing changed.\n", r.ok("key", "update", "team/a", "-rpm", "0"))
	want := k.KeyLimits
	want.RequestsPerMinute, want.Models, want.ExpiresAt = 0, nil, time.Time{}
	r.json(&k, "key", "status", "team/a")
	got = r.do("key", "update", "team/a")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errout, `no limit is given: set at least one flag, see "remuda key update -h"`)
	var changed api.KeyResponse
	r.json(&changed, "key", "update", "team/a", "-weight", "3")
	want.Weight = 3
	require.Equal(t, want, changed.Key.KeyLimits)

	// All that is wrong is told at once.
	got = r.do("key", "create", "other", "-weight", "0", "-priority", "9", "-rpm", "-1")
	require.Equal(t, 1, got.code)
	for _, want := range []string{`key name "other" is reserved`, "weight is 0: must be 0.001 to 1000", "priority is 9: must be at most the max priority, which is 5", "requests per minute is -1"} {
		require.Contains(t, got.errout, want)
	}
	for flag, text := range map[string]string{"soon": `-expires is "soon": must be a time such as 30d or 12h`, "-1h": `-expires is "-1h"`, "": `-expires is ""`} {
		got = r.do("key", "create", "b", "-expires", flag)
		require.Equal(t, 2, got.code)
		require.Contains(t, got.errout, text)
	}

	out = r.ok("key", "rotate", "team/a", "-grace", "1h")
	require.Regexp(t, `^Key "team/a" has a new secret. The one before is valid until \S+\.\nIts secret, which is shown only now:\n\nsk-remuda-\S{43}\n$`, out)
	require.NotContains(t, out, secret)
	out = r.ok("key", "status", "team/a")
	require.Contains(t, out, "\nSecrets\nBEGINS WITH ")
	require.Contains(t, out, secret[:14])
	require.Regexp(t, `(?m)^Tokens today +(=|  *=) 0 of 100 \(0%\)$`, out)
	var rotated api.KeyResponse
	r.json(&rotated, "key", "rotate", "team/a", "-grace", "0s")
	require.Len(t, rotated.Key.Secrets, 1)
	require.True(t, strings.HasPrefix(rotated.Secret, rotated.Key.Secrets[0].Prefix))
	got = r.do("key", "rotate", "team/a", "-grace", "2161h")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errout, "-grace is 2161h0m0s: must be 0s to 2160h0m0s")

	// The requests without a known key.
	require.Equal(t, "Key \"anonymous\" created.\n", r.ok("key", "create", "anonymous", "-concurrency", "2"))
	got = r.do("key", "rotate", "anonymous")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "it has no secret")
	out = r.ok("key", "list", "-verbose")
	require.Regexp(t, `(?m)^anonymous +1 +5 +5 +- +- +2 +- +- +0 +never +\*$`, out)
	require.Regexp(t, `(?m)^team/a +3 +3 +7 +- +1000 +4 +100 +1000 +1 +never +\*$`, out)

	// What it has used comes from the gateways.
	require.Regexp(t, `^No usage from \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d\.\n$`, r.ok("usage"))
	client, err := api.NewClient(api.Config{Addresses: []string{r.url}})
	require.NoError(t, err)
	defer client.Close()
	day := time.Now().UTC().Format(time.DateOnly)
	orders, err := client.GatewayReport(t.Context(), api.GatewayReport{Gateway: "g", Since: time.Now(), Usage: []api.UsageCounters{
		{Key: "team/a", Model: "small", Day: day, Usage: api.Usage{Requests: 2, PromptTokens: 30, CachedTokens: 10, CompletionTokens: 20, EstimatedTokens: 5}},
		{Key: "anonymous", Model: "small", Day: day, Usage: api.Usage{Requests: 1, PromptTokens: 3}},
	}})
	require.NoError(t, err)
	require.Equal(t, map[string]api.TokensUsed{"team/a": {Day: day, Today: 50, ThisMonth: 50}}, orders.Budgets)
	r.eventually("the usage is committed", func() bool { return strings.Contains(r.ok("key", "status", "team/a"), "50 of 100 (50%)") })
	require.Regexp(t, `(?m)^KEY +REQUESTS +PROMPT +CACHED +ANSWER +TOKENS +ESTIMATED\nanonymous +1 +3 +0 +0 +3 +0\nteam/a +2 +30 +10 +20 +50 +5\ntotal +3 +33 +10 +20 +53 +5$`, r.ok("usage"))
	require.Regexp(t, `(?m)^MODEL .*\nsmall +2 +30 +10 +20 +50 +5$`, r.ok("usage", "-by", "model", "-key", "team/a", "-since", "92d"))
	require.Regexp(t, `(?m)^DAY .*\n`+day+` +3 `, r.ok("usage", "-by", "day", "-since", "1d"))
	var report api.UsageReport
	r.json(&report, "usage", "-model", "none")
	require.NotNil(t, report.Rows)
	for _, args := range [][]string{{"-by", "week"}, {"-since", "93d"}, {"-since", "7"}, {"-since", "0d"}} {
		got = r.do(append([]string{"usage"}, args...)...)
		require.Equal(t, 2, got.code)
		require.Contains(t, got.errout, args[0]+` is "`+args[1]+`": must be`)
	}

	require.Equal(t, "Deleted key \"team/a\".\n", r.ok("key", "delete", "team/a"))
	got = r.do("key", "delete", "team/a")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `key "team/a" does not exist: see "remuda key list"`)
	require.Contains(t, r.ok("usage"), "team/a", "its usage is kept")
}

func TestExpires(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	for text, want := range map[string]time.Time{
		"never": {}, "30d": time.Date(2026, 4, 3, 5, 6, 7, 0, time.UTC), "90m": time.Date(2026, 3, 4, 6, 36, 7, 0, time.UTC),
		"2027-01-31": time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC), "2027-01-31T18:00:00+02:00": time.Date(2027, 1, 31, 16, 0, 0, 0, time.UTC),
	} {
		got, err := parseExpires(text, now)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "0d", "-1d", "0s", "1", "tomorrow", "2027-02-30", "99999d"} {
		_, err := parseExpires(text, now)
		require.ErrorContains(t, err, `-expires is "`+text+`": must be`, text)
	}
}
