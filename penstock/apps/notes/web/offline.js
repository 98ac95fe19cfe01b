// Lets the page open without a network: the server's files if it answers, else those of the last visit.
'use strict'

const CACHE = 'penstock-notes'
const FILES = ['./', 'client.js', 'client.css', '/dashboard/static/dashboard.css', '/dashboard/static/icon.svg']

self.addEventListener('install', (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => self.skipWaiting()))
})
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()))
self.addEventListener('fetch', (event) => {
  const { pathname } = new URL(event.request.url)
  // Data is never cached: the page keeps it in IndexedDB.
  if (event.request.method !== 'GET' || pathname.startsWith('/rest/') || pathname.startsWith('/functions/')) return
  event.respondWith(fetch(event.request).then(async (response) => {
    if (response.ok && !response.redirected) await (await caches.open(CACHE)).put(event.request, response.clone())
    return response
  }).catch(() => caches.match(event.request)))
})
