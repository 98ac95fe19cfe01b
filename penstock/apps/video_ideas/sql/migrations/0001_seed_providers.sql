-- phase: expand
-- Who writes and who renders, for which price: to start with. Change it with `penstock limits` and `penstock prices`.

select penstock.set_meter('video_bytes', '{"comment": "bytes of finished video"}');

-- Models, at the simulator (`penstock simulate --port 8090`); a real one gets the feature `script`, and prices.
select penstock.set_provider(x.name, jsonb_build_object('concurrency', x.concurrency, 'features', x.features))
from (values
  ('simulator/gpt-brook', 8, array['script']),
  ('simulator/gpt-river', 8, array['script']),
  ('studio/sketch', 4, array['video', '360p', 'landscape', 'square']),
  ('studio/print', 4, array['video', '360p', '720p', 'landscape', 'portrait', 'square']),
  ('studio/cinema', 4, array['video', '360p', '720p', 'landscape', 'portrait', 'square'])) as x(name, concurrency, features);

-- What a second of rendering and a month of storage cost here is for you to say: these are examples.
select penstock.set_price(x.name, x.meter, x.amount, jsonb_build_object('per', x.per, 'cost_type', x.cost_type, 'currency', 'USD'))
from (values
  ('simulator/gpt-brook', 'input_tokens', 0.05, 1000000, 'inference'),
  ('simulator/gpt-brook', 'output_tokens', 0.40, 1000000, 'inference'),
  ('simulator/gpt-river', 'input_tokens', 0.25, 1000000, 'inference'),
  ('simulator/gpt-river', 'output_tokens', 2.00, 1000000, 'inference'),
  ('studio/sketch', 'seconds', 0.0004, 1, 'render'),
  ('studio/print', 'seconds', 0.0015, 1, 'render'),
  ('studio/cinema', 'seconds', 0.0040, 1, 'render'),
  ('studio/sketch', 'video_bytes', 0.023, 1000000000, 'storage'),
  ('studio/print', 'video_bytes', 0.023, 1000000000, 'storage'),
  ('studio/cinema', 'video_bytes', 0.023, 1000000000, 'storage')) as x(name, meter, amount, per, cost_type);
