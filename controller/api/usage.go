package api

import (
	"context"
	"net/url"
	"strconv"
)

// UsageDays is for how many days usage is kept, today included, in UTC.
const UsageDays = 92

// Usage is what requests have used.
type Usage struct {
	// Requests is how many requests got an answer of an engine, whole or in part.
	Requests int64 `min:"0"`
	// PromptTokens are the tokens of prompts, and CachedTokens those of them that an engine had in
	// its prefix cache. CompletionTokens are the tokens of answers.
	PromptTokens     int64 `min:"0"`
	CachedTokens     int64 `min:"0"`
	CompletionTokens int64 `min:"0"`
	// EstimatedTokens are those of PromptTokens and CompletionTokens that the gateway has
	// estimated, because the engine did not count them or the answer broke off before its end.
	EstimatedTokens int64 `min:"0"`
}

// Tokens is how many tokens count against a budget: those of prompts and answers.
func (u Usage) Tokens() int64 { return u.PromptTokens + u.CompletionTokens }

// UsageRow is what was used of one model by one key on one day, or of all that the fields that are
// absent do not tell apart.
type UsageRow struct {
	// Day is a day in UTC, as "2006-01-02".
	Day   string `json:",omitempty"`
	Key   string `json:",omitempty"`
	Model string `json:",omitempty"`
	Usage
}

// UsageReport is the usage of some days.
type UsageReport struct {
	// Since and Until are its first and its last day.
	Since, Until string
	// Rows are sorted by day, key and model.
	Rows []UsageRow
	// Total is the sum of the rows.
	Total Usage
}

// What the rows of a UsageReport are of.
const (
	UsageByKey   = "key"
	UsageByModel = "model"
	UsageByDay   = "day"
)

// UsageQuery selects usage.
type UsageQuery struct {
	// By is one of the UsageBy constants; empty: a row for each day, key and model.
	By string
	// Days is how many days until today, 1 to UsageDays; 0: 7.
	Days int
	// Key and Model restrict it to one of them.
	Key, Model string
}

// Usage returns what all gateways have reported, but for the last few seconds.
func (c *Client) Usage(ctx context.Context, u UsageQuery, q QueryOptions) (UsageReport, QueryMeta, error) {
	params := url.Values{}
	for name, value := range map[string]string{"by": u.By, "key": u.Key, "model": u.Model} {
		if value != "" {
			params.Set(name, value)
		}
	}
	if u.Days != 0 {
		params.Set("days", strconv.Itoa(u.Days))
	}
	return read[UsageReport](ctx, c, "/v1/usage", params, q)
}
