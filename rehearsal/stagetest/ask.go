package stagetest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

func values(of map[string]string) string {
	v := url.Values{}
	for k, s := range of {
		v.Set(k, s)
	}
	return v.Encode()
}

func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

// finite reads a sample's value; false for NaN and infinities.
func finite(raw json.RawMessage) (float64, bool) {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// Alert is an alert as Prometheus has it.
type Alert struct {
	State       string            `json:"state"` // pending or firing
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Alerts are those that are pending or firing, by name.
func (st *Stage) Alerts() (map[string]Alert, error) {
	status, raw, err := Get("http://" + st.Prometheus + "/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	var a struct {
		Data struct {
			Alerts []Alert `json:"alerts"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("alerts: %d %w", status, err)
	}
	out := map[string]Alert{}
	for _, al := range a.Data.Alerts {
		out[al.Labels["alertname"]] = al
	}
	return out, nil
}
