package ui

import (
	"net/http"
	"strconv"

	"remuda/controller/api"
)

// usageData is what the page of keys and usage shows.
type usageData struct {
	Days int
	// Choices are numbers of days that the form offers.
	Choices []int
	By      string
	Keys    []keyRow
	// KeysTotal is how many keys there are; Keys has the first maxRows.
	KeysTotal int
	Report    api.UsageReport
	// RowsTotal is how many rows the report has; Report has the first maxRows of them.
	RowsTotal int
}

// keyRow is a key with its tokens in the days of the page.
type keyRow struct {
	api.Key
	Used api.Usage
}

func loadUsage(v *visit) (any, error) {
	d := usageData{Days: 7, Choices: []int{1, 7, 30, api.UsageDays}, By: v.query.Get("by")}
	if text := v.query.Get("days"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > api.UsageDays {
			return nil, &api.Error{Status: http.StatusBadRequest, Message: "days is " + strconv.Quote(text) + ": must be a number from 1 to " + strconv.Itoa(api.UsageDays)}
		}
		d.Days = n
	}
	byKey, meta, err := v.api.Usage(v.ctx, api.UsageQuery{By: api.UsageByKey, Days: d.Days}, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	if d.Report, _, err = v.api.Usage(v.ctx, api.UsageQuery{By: d.By, Days: d.Days}, api.QueryOptions{}); err != nil {
		return nil, err
	}
	keys, _, err := v.api.Keys(v.ctx, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	used := map[string]api.Usage{}
	for _, row := range byKey.Rows {
		used[row.Key] = row.Usage
	}
	d.KeysTotal, d.RowsTotal = len(keys), len(d.Report.Rows)
	for _, k := range keys[:min(len(keys), maxRows)] {
		d.Keys = append(d.Keys, keyRow{k, used[k.Name]})
	}
	// The newest day is the last.
	d.Report.Rows = d.Report.Rows[max(0, len(d.Report.Rows)-maxRows):]
	return d, nil
}
