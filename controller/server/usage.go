package server

import (
	"cmp"
	"slices"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

// defaultUsageDays is for how many days usage is shown where the caller does not say.
const defaultUsageDays = 7

func (s *Server) usage(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	by := rq.query.Get("by")
	if !slices.Contains([]string{"", api.UsageByKey, api.UsageByModel, api.UsageByDay}, by) {
		return answer{}, badRequest("by is %s: must be %s, %s or %s", clip(by), api.UsageByKey, api.UsageByModel, api.UsageByDay)
	}
	now := s.cfg.Now()
	out := api.UsageReport{Since: state.UsageDay(now.UTC().AddDate(0, 0, 1-int(rq.numbers["days"]))), Until: state.UsageDay(now), Rows: []api.UsageRow{}}
	key, model := rq.query.Get("key"), rq.query.Get("model")
	sums, total := map[api.UsageRow]state.Usage{}, state.Usage{}
	for _, row := range v.UsageRows(ws, out.Since) {
		if key != "" && row.Key != key || model != "" && row.Model != model || row.Day > out.Until {
			continue
		}
		of := api.UsageRow{Day: row.Day, Key: row.Key, Model: row.Model}
		switch by {
		case api.UsageByKey:
			of.Day, of.Model = "", ""
		case api.UsageByModel:
			of.Day, of.Key = "", ""
		case api.UsageByDay:
			of.Key, of.Model = "", ""
		}
		sums[of], total = sums[of].Add(row.Usage), total.Add(row.Usage)
	}
	for row, sum := range sums {
		row.Usage = api.Usage(sum)
		out.Rows = append(out.Rows, row)
	}
	slices.SortFunc(out.Rows, func(a, b api.UsageRow) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model))
	})
	out.Total = api.Usage(total)
	return answer{value: out, index: v.TableIndex(state.TableUsage)}, nil
}
